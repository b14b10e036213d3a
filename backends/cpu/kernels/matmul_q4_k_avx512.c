/* backends/cpu/kernels/matmul_q4_k_avx512.c - rule M for Q4_K with VNNI. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_avx512.h"

enum { TILE_ROWS = 4 };

ALWAYS_INLINE __m512 bytes_to_ps(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
}

ALWAYS_INLINE void tile(const mr_matmul_args *args, int32_t panel, int32_t row, int n_panels, int n_rows) {
    const mr_panel_q4_k *w[2];
    a8_row a[TILE_ROWS];
    __m512 acc[2][TILE_ROWS];
    size_t panel_bytes = mr_panel_bytes(MR_TYPE_Q4_K, args->k);
    __m512i low = _mm512_set1_epi8(15);
    for (int p = 0; p < n_panels; p++)
        w[p] = (const mr_panel_q4_k *)(const void *)(args->w + (size_t)(panel + p) * panel_bytes);
    for (int r = 0; r < n_rows; r++)
        a[r] = a8_row_at(matmul_a_row(args, row + r), args->k);
    for (int p = 0; p < n_panels; p++)
        for (int r = 0; r < n_rows; r++)
            acc[p][r] = _mm512_setzero_ps();
    for (int32_t b = 0; b < args->k / 32; b++) {
        int j = b % 8;
        for (int p = 0; p < n_panels; p++) {
            const mr_panel_q4_k *block = w[p] + b / 8;
            __m512i sum[TILE_ROWS];
            for (int r = 0; r < n_rows; r++)
                sum[r] = _mm512_setzero_si512();
            for (int g = 0; g < 4; g++) {
                __m512i q = _mm512_loadu_si512(block->q[j][g]);
                __m512i q0 = _mm512_and_si512(q, low), q1 = _mm512_and_si512(_mm512_srli_epi16(q, 4), low);
                for (int r = 0; r < n_rows; r++) {
                    sum[r] = _mm512_dpbusd_epi32(sum[r], q0, broadcast_group(a[r].q + b * 32 + g * 4));
                    sum[r] = _mm512_dpbusd_epi32(sum[r], q1, broadcast_group(a[r].q + b * 32 + 16 + g * 4));
                }
            }
            __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)block->d));
            __m512 dmin = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)block->dmin));
            __m512 scale = _mm512_mul_ps(d, bytes_to_ps(block->scale[j].sc));
            __m512 min = _mm512_mul_ps(dmin, bytes_to_ps(block->scale[j].m));
            for (int r = 0; r < n_rows; r++) {
                __m512 da = _mm512_set1_ps(a[r].d[b]);
                __m512 da_sum = _mm512_mul_ps(da, _mm512_set1_ps((float)a[r].sum[b]));
                acc[p][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), _mm512_mul_ps(scale, da), acc[p][r]);
                acc[p][r] = _mm512_fnmadd_ps(min, da_sum, acc[p][r]);
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

void mr_matmul_q4_k_avx512(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                           int32_t row_last) {
    int32_t panel = panel_first;
    for (; panel + 2 <= panel_last; panel += 2)
        rows(args, panel, 2, row_first, row_last);
    if (panel < panel_last)
        rows(args, panel, 1, row_first, row_last);
}
