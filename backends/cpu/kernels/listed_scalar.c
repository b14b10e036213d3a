/* backends/cpu/kernels/listed_scalar.c - products of listed rows by rule M: the specification. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels.h"
#include "engine/base/fmath.h"
#include "engine/base/le.h"
#include "engine/tensor/f16.h"

void mr_listed_f16_scalar(const mr_listed_args *args) {
    for (int32_t r = 0; r < args->n_rows; r++)
        for (int32_t i = 0; i < args->n; i++) {
            const uint8_t *w = args->w + (size_t)args->list[i] * args->w_row_bytes;
            const float *a = (const float *)(const void *)((const uint8_t *)args->a + (size_t)r * args->a_row_bytes);
            float acc = 0.0f;
            for (int32_t k = 0; k < args->k; k++)
                acc = fmaf(mr_f16_to_f32(mr_load_le16(w + 2 * (size_t)k)), a[k], acc);
            ((float *)(void *)((uint8_t *)args->y + (size_t)r * args->y_row_bytes))[i] = acc;
        }
}
