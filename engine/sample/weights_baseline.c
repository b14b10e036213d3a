/* engine/sample/weights_baseline.c - compiles weights_body.h for every CPU, and chooses between this version and that
 * of weights_avx2.c when the program runs. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/weights_body.h"

uint64_t weights_baseline(const float *logits, int32_t n, float max, float temperature, uint64_t *out_weights) {
    return weights_body(logits, n, max, temperature, out_weights);
}

weights_fn weights_select(void) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return weights_avx2;
#endif
    return weights_baseline;
}
