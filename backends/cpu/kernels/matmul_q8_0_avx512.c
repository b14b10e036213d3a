/* backends/cpu/kernels/matmul_q8_0_avx512.c - rule M for Q8_0 with VNNI. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_avx512.h"

enum { TILE_ROWS = 6 };

/* n_panels x n_rows outputs, both constants. */
ALWAYS_INLINE void tile(const mr_matmul_args *args, int32_t panel, int32_t row, int n_panels, int n_rows) {
    const mr_panel_q8_0 *w[2];
    a8_row a[TILE_ROWS];
    __m512 acc[2][TILE_ROWS];
    size_t panel_bytes = mr_panel_bytes(MR_TYPE_Q8_0, args->k);
    for (int p = 0; p < n_panels; p++)
        w[p] = (const mr_panel_q8_0 *)(const void *)(args->w + (size_t)(panel + p) * panel_bytes);
    for (int r = 0; r < n_rows; r++)
        a[r] = a8_row_at(matmul_a_row(args, row + r), args->k);
    for (int p = 0; p < n_panels; p++)
        for (int r = 0; r < n_rows; r++)
            acc[p][r] = _mm512_setzero_ps();
    for (int32_t b = 0; b < args->k / 32; b++) {
        __m512i sum[2][TILE_ROWS];
        for (int r = 0; r < n_rows; r++)
            for (int p = 0; p < n_panels; p++)
                sum[p][r] = _mm512_set1_epi32(a[r].sum[b] * -128);
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++)
#pragma GCC unroll 6
            for (int r = 0; r < n_rows; r++) {
                __m512i x = broadcast_group(a[r].q + b * 32 + g * 4);
#pragma GCC unroll 2
                for (int p = 0; p < n_panels; p++)
                    sum[p][r] = _mm512_dpbusd_epi32(sum[p][r], _mm512_loadu_si512(w[p][b].q[g]), x);
            }
        for (int p = 0; p < n_panels; p++) {
            __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)w[p][b].d));
            for (int r = 0; r < n_rows; r++)
                acc[p][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[p][r]), _mm512_mul_ps(d, _mm512_set1_ps(a[r].d[b])),
                                            acc[p][r]);
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

void mr_matmul_q8_0_avx512(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                           int32_t row_last) {
    int32_t panel = panel_first;
    for (; panel + 2 <= panel_last; panel += 2)
        rows(args, panel, 2, row_first, row_last);
    if (panel < panel_last)
        rows(args, panel, 1, row_first, row_last);
}
