/* backends/cpu/kernels/listed_neon.c - the products of listed rows of listed_vec.h with NEON. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_neon.h"

MR_ALWAYS_INLINE void transpose_16x8(const uint8_t *const rows[16], int32_t k, v16 w[8]) {
    uint16x8_t a[8], b[8];
    uint16_t columns[8][16];
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 8; i++)
            a[i] = vreinterpretq_u16_u8(vld1q_u8(rows[8 * half + i] + 2 * (size_t)k));
        for (int step = 0; step < 3; step++) {
            for (int i = 0; i < 4; i++) {
                b[2 * i] = vzip1q_u16(a[i], a[i + 4]);
                b[2 * i + 1] = vzip2q_u16(a[i], a[i + 4]);
            }
            for (int i = 0; i < 8; i++)
                a[i] = b[i];
        }
        for (int i = 0; i < 8; i++)
            vst1q_u16(columns[i] + 8 * half, a[i]);
    }
    for (int i = 0; i < 8; i++)
        w[i] = v16_load_f16(columns[i]);
}

#include "backends/cpu/kernels/listed_vec.h"

void mr_listed_f16_neon(const mr_listed_args *args) {
    listed_vec(args);
}
