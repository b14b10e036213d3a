/* backends/cpu/kernels/limits_avx512.c - the loops of limits.h with AVX-512 and VNNI. A product instruction takes 4 or
 * 5 cycles, and two can begin in each cycle, so the loop needs at least ten independent sums. */
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "backends/cpu/limits.h"

enum { N_SUMS = 16 };

/* Tells the compiler that the register is read and changed here, so the compiler can neither remove a loop nor compute
 * its result in advance. */
#define KEEP(x) __asm__ volatile("" : "+v"(x))

void mr_limit_read_avx512(const uint8_t *p, size_t bytes) {
    __m512i sum[N_SUMS] = {0};
    for (const uint8_t *end = p + bytes; p < end; p += 64 * N_SUMS)
        for (int i = 0; i < N_SUMS; i++)
            sum[i] = _mm512_xor_si512(sum[i], _mm512_load_si512(p + 64 * i));
    for (int i = 0; i < N_SUMS; i++)
        KEEP(sum[i]);
}

int32_t mr_limit_int8_avx512(int64_t n) {
    __m512i sum[N_SUMS] = {0}, a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < N_SUMS; i++) {
            sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
            KEEP(sum[i]);
        }
    return N_SUMS * 64;
}

int32_t mr_limit_f32_avx512(int64_t n) {
    __m512 sum[N_SUMS] = {0}, a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < N_SUMS; i++) {
            sum[i] = _mm512_fmadd_ps(a, b, sum[i]);
            KEEP(sum[i]);
        }
    return N_SUMS * 16;
}
