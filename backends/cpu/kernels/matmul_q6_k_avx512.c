/* backends/cpu/kernels/matmul_q6_k_avx512.c - rule M for Q6_K with VNNI. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_avx512.h"

enum { TILE_ROWS = 4 };

/* The four groups of a sub-block, as values 0..63. */
ALWAYS_INLINE void unpack(const uint8_t q[3][MR_PANEL][4], __m512i out[4]) {
    __m512i a = _mm512_loadu_si512(q[0]), b = _mm512_loadu_si512(q[1]), c = _mm512_loadu_si512(q[2]);
    __m512i low6 = _mm512_set1_epi8(63);
    out[0] = _mm512_and_si512(a, low6);
    out[1] = _mm512_and_si512(b, low6);
    out[2] = _mm512_and_si512(c, low6);
    /* Selects: a bit of the mask takes the second operand, else the third. */
    __m512i ab =
        _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x30), _mm512_srli_epi16(a, 2), _mm512_srli_epi16(b, 4), 0xca);
    __m512i abc = _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x3c), ab, _mm512_srli_epi16(c, 6), 0xca);
    out[3] = _mm512_and_si512(abc, low6);
}

ALWAYS_INLINE void tile(const mr_matmul_args *args, int32_t panel, int32_t row, int n_panels, int n_rows) {
    const mr_panel_q6_k *w[2];
    a8_row a[TILE_ROWS];
    __m512 acc[2][TILE_ROWS];
    size_t panel_bytes = mr_panel_bytes(MR_TYPE_Q6_K, args->k);
    for (int p = 0; p < n_panels; p++)
        w[p] = (const mr_panel_q6_k *)(const void *)(args->w + (size_t)(panel + p) * panel_bytes);
    for (int r = 0; r < n_rows; r++)
        a[r] = a8_row_at(matmul_a_row(args, row + r), args->k);
    for (int p = 0; p < n_panels; p++)
        for (int r = 0; r < n_rows; r++)
            acc[p][r] = _mm512_setzero_ps();
    for (int32_t b = 0; b < args->k / 16; b++) {
        int j = b % 16;
        for (int p = 0; p < n_panels; p++) {
            const mr_panel_q6_k *block = w[p] + b / 16;
            __m512i q[4];
            unpack(block->q[j], q);
            __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)block->d));
            __m512i sc = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)block->sc[j]));
            __m512 scale = _mm512_mul_ps(d, _mm512_cvtepi32_ps(sc));
            for (int r = 0; r < n_rows; r++) {
                __m512i sum = _mm512_setzero_si512(), offset = sum;
                for (int g = 0; g < 4; g++) {
                    __m512i x = broadcast_group(a[r].q + b * 16 + g * 4);
                    sum = _mm512_dpbusd_epi32(sum, q[g], x);
                    offset = _mm512_dpbusd_epi32(offset, _mm512_set1_epi8(32), x);
                }
                sum = _mm512_sub_epi32(sum, offset);
                __m512 da = _mm512_set1_ps(a[r].d[b / 2]);
                acc[p][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, da), acc[p][r]);
            }
        }
    }
    for (int r = 0; r < n_rows; r++)
        for (int p = 0; p < n_panels; p++)
            store_panel(args, row + r, panel + p, acc[p][r]);
}

ALWAYS_INLINE void rows(const mr_matmul_args *args, int32_t panel, int n_panels, int32_t row_first, int32_t row_last) {
    int32_t row = row_first;
    for (; row + TILE_ROWS <= row_last; row += TILE_ROWS)
        tile(args, panel, row, n_panels, TILE_ROWS);
    for (; row < row_last; row++)
        tile(args, panel, row, n_panels, 1);
}

void mr_matmul_q6_k_avx512(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                           int32_t row_last) {
    int32_t panel = panel_first;
    for (; panel + 2 <= panel_last; panel += 2)
        rows(args, panel, 2, row_first, row_last);
    if (panel < panel_last)
        rows(args, panel, 1, row_first, row_last);
}
