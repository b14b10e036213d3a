/* backends/cpu/kernels/matmul_q8_0_avx2.c - rule M for Q8_0 with AVX2.
 * Half a panel (8 rows) in each register. Bytes become 16-bit numbers (q = u8 - 128), four k of a row multiply-add into
 * two 32-bit sums (pmaddwd: no saturation). */
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>
#include <string.h>

#include "backends/cpu/kernels/matmul_panels.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Rows r0..r0+3 of one group, as 16-bit values. */
ALWAYS_INLINE __m256i load_words(const mr_panel_q8_0 *w, int g, int r0) {
    __m256i u = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)w->q[g][r0]));
    return _mm256_sub_epi16(u, _mm256_set1_epi16(128));
}

/* acc[h]: lanes 8h..8h+7 of the panel. */
ALWAYS_INLINE void block(const mr_panel_q8_0 *w, a8_row a, int32_t b, __m256 acc[2]) {
    __m256i s[4];
    for (int q = 0; q < 4; q++)
        s[q] = _mm256_setzero_si256();
    for (int g = 0; g < 8; g++) {
        int32_t v;
        memcpy(&v, a.q + b * 32 + g * 4, 4);
        __m256i x = _mm256_cvtepi8_epi16(_mm_set1_epi32(v));
        for (int q = 0; q < 4; q++)
            s[q] = _mm256_add_epi32(s[q], _mm256_madd_epi16(load_words(w, g, q * 4), x));
    }
    for (int h = 0; h < 2; h++) {
        /* hadd: rows 0 1 4 5 | 2 3 6 7 */
        __m256i sum = _mm256_permute4x64_epi64(_mm256_hadd_epi32(s[2 * h], s[2 * h + 1]), 0xd8);
        __m256 d = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(w->d + 8 * h)));
        acc[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, _mm256_set1_ps(a.d[b])), acc[h]);
    }
}

static void store_panel(const mr_matmul_args *args, int32_t row, int32_t panel, const __m256 acc[2]) {
    float lanes[MR_PANEL], *y = matmul_y_row(args, row);
    const float *add = matmul_add_row(args, row);
    _mm256_storeu_ps(lanes, acc[0]);
    _mm256_storeu_ps(lanes + 8, acc[1]);
    for (int32_t n = panel * MR_PANEL; n < args->n && n < (panel + 1) * MR_PANEL; n++) {
        float v = lanes[n % MR_PANEL];
        if (args->bias)
            v += args->bias[n];
        if (add)
            v += add[n];
        y[n] = v;
    }
}

void mr_matmul_q8_0_avx2(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                         int32_t row_last) {
    size_t panel_bytes = mr_panel_bytes(MR_TYPE_Q8_0, args->k);
    for (int32_t panel = panel_first; panel < panel_last; panel++)
        for (int32_t row = row_first; row < row_last; row++) {
            const mr_panel_q8_0 *w = (const mr_panel_q8_0 *)(const void *)(args->w + (size_t)panel * panel_bytes);
            a8_row a = a8_row_at(matmul_a_row(args, row), args->k);
            __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
            for (int32_t b = 0; b < args->k / 32; b++)
                block(w + b, a, b, acc);
            store_panel(args, row, panel, acc);
        }
}
