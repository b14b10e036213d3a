/* backends/cpu/kernels/limits_neon.c - the loops of limits.h with NEON; see limits_avx512.c. Without the dot product
 * instructions, 16 int8 products take four instructions. The loop with dot products is in limits_dotprod.c. */
// SPDX-License-Identifier: Apache-2.0
#include <arm_neon.h>

#include "backends/cpu/limits.h"

enum { N_SUMS = 16 };

/* Tells the compiler that the register is read and changed here, so the compiler can neither remove a loop nor compute
 * its result in advance. */
#define KEEP(x) __asm__ volatile("" : "+w"(x))

void mr_limit_read_neon(const uint8_t *p, size_t bytes) {
    uint8x16_t sum[N_SUMS] = {0};
    for (const uint8_t *end = p + bytes; p < end; p += 16 * N_SUMS)
        for (int i = 0; i < N_SUMS; i++)
            sum[i] = veorq_u8(sum[i], vld1q_u8(p + 16 * i));
    for (int i = 0; i < N_SUMS; i++)
        KEEP(sum[i]);
}

int32_t mr_limit_int8_neon(int64_t n) {
    int32x4_t sum[N_SUMS] = {0};
    int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(5);
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < N_SUMS; i++) {
            KEEP(a);
            int16x8_t lo = vmull_s8(vget_low_s8(a), vget_low_s8(b)), hi = vmull_high_s8(a, b);
            sum[i] = vpadalq_s16(sum[i], vpaddq_s16(lo, hi));
            KEEP(sum[i]);
        }
    return N_SUMS * 16;
}

int32_t mr_limit_f32_neon(int64_t n) {
    float32x4_t sum[N_SUMS] = {0}, a = vdupq_n_f32(0.5f), b = vdupq_n_f32(0.25f);
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < N_SUMS; i++) {
            sum[i] = vfmaq_f32(sum[i], a, b);
            KEEP(sum[i]);
        }
    return N_SUMS * 4;
}
