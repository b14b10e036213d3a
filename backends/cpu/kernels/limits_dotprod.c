/* backends/cpu/kernels/limits_dotprod.c - the int8 loop of limits.h with NEON's dot product instructions; see
 * limits_neon.c. */
// SPDX-License-Identifier: Apache-2.0
#include <arm_neon.h>

#include "backends/cpu/limits.h"

enum { N_SUMS = 16 };

#define KEEP(x) __asm__ volatile("" : "+w"(x))

int32_t mr_limit_int8_dotprod(int64_t n) {
    int32x4_t sum[N_SUMS] = {0};
    int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(5);
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < N_SUMS; i++) {
            sum[i] = vdotq_s32(sum[i], a, b);
            KEEP(sum[i]);
        }
    return N_SUMS * 16;
}
