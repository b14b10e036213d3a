/* backends/cpu/kernels/listed_avx2.c - the products of listed rows of listed_vec.h with AVX2, FMA and F16C. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_avx2.h"

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
        w[i] = (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(a[i])), _mm256_cvtph_ps(_mm256_extracti128_si256(a[i], 1))};
}

#include "backends/cpu/kernels/listed_vec.h"

void mr_listed_f16_avx2(const mr_listed_args *args) {
    listed_vec(args);
}
