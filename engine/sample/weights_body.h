/* engine/sample/weights_body.h - the body that weights_baseline.c and weights_avx2.c compile for their instructions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_SAMPLE_WEIGHTS_BODY_H
#define MR_ENGINE_SAMPLE_WEIGHTS_BODY_H

#include "engine/base/top.h"
#include "engine/sample/weights.h"

static inline uint64_t weights_body(const float *logits, int32_t n, float max, float temperature,
                                    uint64_t *restrict out_weights) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        float below = (logits[i] - max) / temperature;
        below = logits[i] == max ? 0.0f : below; /* also for two infinities */
        uint64_t w = mr_weight_of(below);
        out_weights[i] = w;
        sum += w;
    }
    return sum;
}

#endif
