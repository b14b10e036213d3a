/* backends/blas/blas_internal.h - what the files of the BLAS backend share. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_BLAS_BLAS_INTERNAL_H
#define MR_BACKENDS_BLAS_BLAS_INTERNAL_H

#include "backends/host_memory.h"
#include "engine/base/pool.h"

enum { BLAS_ALIGNMENT = 64 }; /* of tensors in buffers; also the bytes that hold the address of a matrix */

typedef struct blas_backend {
    mr_host_backend host;
    mr_pool *pool;
    int n_threads;
    /* Where threads convert a block of rows to float32; thread i at scratch + i * scratch_floats. program_create makes
     * it larger if a program needs more. */
    float *scratch;
    void *scratch_memory;  /* the allocation; scratch is its first aligned address */
    size_t scratch_floats; /* of each thread; a multiple of 16 */
} blas_backend;

mr_status blas_program_create(mr_backend *base, const mr_program_desc *desc, mr_program **out, mr_err *err);
void blas_program_destroy(mr_backend *be, mr_program *program);
mr_status blas_submit(mr_backend *be, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err);

/* Name of the loaded library, for describe. */
const char *blas_library_name(void);
/* Multiplies once on every thread of the pool, so that the library allocates its buffers now and not in a step. */
void blas_library_warm_up(mr_pool *pool);

/* y[m][n] = a[m][k] * w[n][k]^T + beta * y, row-major. lda, ldw, ldy: floats from one row to the next. */
typedef struct blas_product {
    int32_t m, n, k;
    const float *a, *w;
    float *y;
    size_t lda, ldw, ldy;
    float beta;
} blas_product;
void blas_multiply(const blas_product *p);

/* Writes the values of the n elements at src to out[n]. n is a multiple of the type's block. */
typedef void blas_to_floats_fn(mr_type type, const void *src, float *out, int64_t n);
/* The fastest conversion on this CPU. Do not call this in a step: it asks the CPU for its features, which is slow in
 * virtual machines. */
blas_to_floats_fn *blas_to_floats_of(mr_type type);
/* The conversion of F16 with F16C instructions. */
blas_to_floats_fn blas_halves_f16c;

#endif
