/* engine/sample/weights.h - internal: the softmax in fixed point.
 * weight = round(2^40 * exp((logit - max) / temperature)), to nearest, ties to even. The weight is 2^40 where logit
 * equals max, for any value of max. Sums of integers do not depend on their order, so every way to add or partition
 * weights gives the same result. 2^22 weights stay below 2^63. Rounding changes a probability by less than 2^-41 of the
 * best token's.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_SAMPLE_WEIGHTS_H
#define MR_ENGINE_SAMPLE_WEIGHTS_H

#include <stdint.h>

/* Writes the weights of n logits (no NaN, none above max; temperature > 0) and returns their sum. */
typedef uint64_t (*weights_fn)(const float *logits, int32_t n, float max, float temperature, uint64_t *out_weights);

/* The same code compiled for the baseline and, on x86, for AVX2 with FMA. */
uint64_t weights_baseline(const float *logits, int32_t n, float max, float temperature, uint64_t *out_weights);
uint64_t weights_avx2(const float *logits, int32_t n, float max, float temperature, uint64_t *out_weights);

/* Returns the fastest version that this machine runs. */
weights_fn weights_select(void);

#endif
