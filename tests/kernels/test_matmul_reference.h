/* tests/kernels/test_matmul_reference.h - random matrices, and rule M of engine/NUMERICS.md once more, element by
 * element from the layout of the FILE: it knows nothing of panels. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_KERNELS_TEST_MATMUL_REFERENCE_H
#define MR_TESTS_KERNELS_TEST_MATMUL_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/type.h"
#include "tests/support/rng.h"

/* PLAIN: what models hold. SPECIAL: a tenth of all scales and values are zero, denormal, huge, infinite or NaN. */
typedef enum values { VALUES_PLAIN, VALUES_SPECIAL } values;

/* One row of k weights in file layout. */
void random_weights(rng *r, values kind, mr_type type, int32_t k, uint8_t *out_row);
/* One row of k activations of mr_type_activation(type). */
void random_activations(rng *r, values kind, mr_type type, int32_t k, uint8_t *out_row);
size_t activation_bytes(mr_type type, int32_t k);

/* Rule M before bias and add: one weight row times one activation row. */
float reference_dot(mr_type type, const uint8_t *w_row, const uint8_t *a_row, int32_t k);
/* The same in double on dequantised weights; out_size: the sum of the absolute products. */
double double_dot(mr_type type, const uint8_t *w_row, const uint8_t *a_row, int32_t k, double *out_size);

#endif
