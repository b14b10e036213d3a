/* backends/cpu/kernels/listed_avx512.c - the products of listed rows of listed_vec.h with AVX-512. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_avx512.h"

/* Both halves of a register have eight rows: they are transposed side by side. */
MR_ALWAYS_INLINE void transpose_16x8(const uint8_t *const rows[16], int32_t k, v16 w[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i++) {
        __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(rows[i] + 2 * (size_t)k));
        __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(rows[i + 8] + 2 * (size_t)k));
        a[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 4; i++) {
            b[2 * i] = _mm256_unpacklo_epi16(a[i], a[i + 4]);
            b[2 * i + 1] = _mm256_unpackhi_epi16(a[i], a[i + 4]);
        }
        for (int i = 0; i < 8; i++)
            a[i] = b[i];
    }
    for (int i = 0; i < 8; i++)
        w[i] = _mm512_cvtph_ps(a[i]);
}

#include "backends/cpu/kernels/listed_vec.h"

void mr_listed_f16_avx512(const mr_listed_args *args) {
    listed_vec(args);
}
