/* engine/sample/weights.h - internal: the softmax in fixed point.
 * weight = round(2^40 * exp((logit - max) / temperature)), nearest, ties to even; 2^40 where logit is max, whatever max
 * is. Integers have no order of summation, so every way to add or partition them gives the same result, and 2^22 of
 * them stay below 2^63. What rounding loses is below 2^-41 of the best token's probability for each token.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_SAMPLE_WEIGHTS_H
#define MR_ENGINE_SAMPLE_WEIGHTS_H

#include <stdint.h>

/* Writes the weights of n logits (no NaN, none above max; temperature > 0) and returns their sum. */
typedef uint64_t (*weights_fn)(const float *logits, int32_t n, float max, float temperature, uint64_t *out_weights);

/* The same body for the baseline and, on x86, for AVX2 with FMA. */
uint64_t weights_baseline(const float *logits, int32_t n, float max, float temperature, uint64_t *out_weights);
uint64_t weights_avx2(const float *logits, int32_t n, float max, float temperature, uint64_t *out_weights);

/* The fastest that this machine runs. */
weights_fn weights_select(void);

#endif
