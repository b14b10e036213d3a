/* backends/cpu/kernels/limits_avx2.c - the loops of limits.h with AVX2; see limits_avx512.c. Without VNNI, four int8
 * products of a lane take three instructions. */
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "backends/cpu/limits.h"

enum { N_SUMS = 12 };

#define KEEP(x) __asm__ volatile("" : "+x"(x))

void mr_limit_read_avx2(const uint8_t *p, size_t bytes) {
    __m256i sum[8] = {0};
    for (const uint8_t *end = p + bytes; p < end; p += 32 * 8)
        for (int i = 0; i < 8; i++)
            sum[i] = _mm256_xor_si256(sum[i], _mm256_load_si256((const __m256i *)(const void *)(p + 32 * i)));
    for (int i = 0; i < 8; i++)
        KEEP(sum[i]);
}

int32_t mr_limit_int8_avx2(int64_t n) {
    __m256i sum[N_SUMS] = {0}, a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), one = _mm256_set1_epi16(1);
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < N_SUMS; i++) {
            KEEP(a);
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), one));
            KEEP(sum[i]);
        }
    return N_SUMS * 32;
}

int32_t mr_limit_f32_avx2(int64_t n) {
    __m256 sum[N_SUMS] = {0}, a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < N_SUMS; i++) {
            sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
            KEEP(sum[i]);
        }
    return N_SUMS * 8;
}
