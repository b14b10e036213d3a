/* tests/kernels/test_matmul_reference.h - random matrices, and a second implementation of rule M of engine/NUMERICS.md.
 * It goes element by element over the layout of the FILE and does not use panels. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_KERNELS_TEST_MATMUL_REFERENCE_H
#define MR_TESTS_KERNELS_TEST_MATMUL_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/type.h"
#include "tests/support/rng.h"

/* PLAIN: values as in models. SPECIAL: a tenth of all scales and values are zero, denormal, huge, infinite or NaN. */
typedef enum values { VALUES_PLAIN, VALUES_SPECIAL } values;

/* Makes one row of k weights in file layout. */
void random_weights(rng *r, values kind, mr_type type, int32_t k, uint8_t *out_row);
/* Makes one row of k activations of mr_type_activation(type). */
void random_activations(rng *r, values kind, mr_type type, int32_t k, uint8_t *out_row);
size_t activation_bytes(mr_type type, int32_t k);

/* Multiplies one weight row by one activation row by rule M, before bias and add. */
float reference_dot(mr_type type, const uint8_t *w_row, const uint8_t *a_row, int32_t k);
/* The same product in double, of the dequantised weights. out_size: the sum of the absolute products. */
double double_dot(mr_type type, const uint8_t *w_row, const uint8_t *a_row, int32_t k, double *out_size);

#endif
