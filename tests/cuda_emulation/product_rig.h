/* tests/cuda_emulation/product_rig.h - matrix products on the emulated GPU, next to the scalar kernels of the CPU.
 *
 *     product_problem *p = product_problem_create(MR_TYPE_F16, 1, 17, 33, 5, VALUES_PLAIN, 7);
 *     product_check(p, &(product_variant){.n_rows = 5, .bias = true}, run);
 *     product_problem_destroy(p);
 *
 * Results and the memory around them are compared with memcmp, where all NaNs count as equal.
 * Threads: the main thread of a test. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_PRODUCT_RIG_H
#define MR_TESTS_CUDA_EMULATION_PRODUCT_RIG_H

#include <stdbool.h>

#include "backends/cuda/cuda_internal.h"
#include "backends/cuda/kernels/cuda_products.h"
#include "tests/kernels/test_matmul_reference.h"

typedef struct product_problem product_problem;

/* n_matrices matrices [n, k], heads or experts, and n_rows activation rows for each head. */
typedef struct product_shape {
    mr_type type;
    int32_t n_matrices, k, n, n_rows;
} product_shape;

/* What one product does. */
typedef struct product_variant {
    int32_t n_rows; /* with experts: slots */
    bool bias, add, alias;
    enum { PRODUCT_ALONE, PRODUCT_HEADS, PRODUCT_EXPERTS } of;
} product_variant;

/* Brings a matrix into the layout of the kernels. panels: matrix_bytes. */
typedef struct product_layout {
    size_t matrix_bytes;
    void (*repack)(const cuda_repack *repack);
} product_layout;
/* Launches a product. args are complete but for blocks_of_matrix. */
typedef void product_run_fn(const product_shape *shape, const product_variant *v, cuda_product_args *args, void *ctx);

product_problem *product_problem_create(const product_shape *shape, product_layout layout, values kind, uint64_t seed);
void product_problem_destroy(product_problem *p);
void product_check(const product_problem *p, const product_variant *v, product_run_fn *run, void *ctx);

#endif
