// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/quant.h"

#include <string.h>

#include "engine/base/le.h"
#include "engine/base/status.h"
#include "engine/tensor/f16.h"

static void dequantize_q8_0(const mr_block_q8_0 *b, float *out) {
    float d = mr_f16_to_f32(b->d);
    for (int i = 0; i < MR_Q8_0_BLOCK; i++)
        out[i] = d * (float)b->q[i];
}

static void dequantize_q4_k(const mr_block_q4_k *b, float *out) {
    float d = mr_f16_to_f32(b->d), dmin = mr_f16_to_f32(b->dmin);
    for (int j = 0; j < 8; j++) {
        uint8_t sc, m;
        mr_q4_k_scale(b->scales, j, &sc, &m);
        float scale = d * (float)sc, min = dmin * (float)m;
        for (int i = j * 32; i < j * 32 + 32; i++)
            out[i] = scale * (float)mr_q4_k_value(b, i) - min;
    }
}

static void dequantize_q6_k(const mr_block_q6_k *b, float *out) {
    float d = mr_f16_to_f32(b->d);
    for (int i = 0; i < MR_QK_BLOCK; i++)
        out[i] = d * (float)b->sc[i / 16] * (float)(mr_q6_k_value(b, i) - 32);
}

void mr_dequantize(mr_type type, const void *src, float *out, int64_t n) {
    switch (type) {
    case MR_TYPE_F32:
        memcpy(out, src, (size_t)n * sizeof(float));
        return;
    case MR_TYPE_F16:
        for (int64_t i = 0; i < n; i++)
            out[i] = mr_f16_to_f32(mr_load_le16((const uint8_t *)src + 2 * i));
        return;
    case MR_TYPE_Q8_0:
        for (int64_t i = 0; i < n / MR_Q8_0_BLOCK; i++)
            dequantize_q8_0((const mr_block_q8_0 *)src + i, out + i * MR_Q8_0_BLOCK);
        return;
    case MR_TYPE_Q4_K:
        for (int64_t i = 0; i < n / MR_QK_BLOCK; i++)
            dequantize_q4_k((const mr_block_q4_k *)src + i, out + i * MR_QK_BLOCK);
        return;
    case MR_TYPE_Q6_K:
        for (int64_t i = 0; i < n / MR_QK_BLOCK; i++)
            dequantize_q6_k((const mr_block_q6_k *)src + i, out + i * MR_QK_BLOCK);
        return;
    default:
        MR_ASSERT(!"a type without is_weight reached mr_dequantize");
    }
}
