/* engine/sample/weights_avx2.c - compiles weights_body.h for AVX2. The code has a file of its own because only this
 * file may have instructions that some CPUs lack. The bits are the same as those of weights_baseline.c. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/weights_body.h"

uint64_t weights_avx2(const float *logits, int32_t n, float max, float temperature, uint64_t *out_weights) {
    return weights_body(logits, n, max, temperature, out_weights);
}
