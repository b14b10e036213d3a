/* backends/cpu/kernels/matmul_q8_0_avx512.c - rule M for Q8_0 with VNNI. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_avx512.h"

enum { TILE_ROWS = 6, LINE = 64 };

/* n_panels x n_rows outputs, both constants. Asks for `lines` cache lines from `ahead` on for every 32 k. */
ALWAYS_INLINE void tile(const mr_matmul_args *args, int32_t panel, int32_t row, int n_panels, int n_rows,
                        const uint8_t *ahead, int lines) {
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
        for (int i = 0; i < lines; i++, ahead += LINE)
            _mm_prefetch((const char *)ahead, _MM_HINT_T1);
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

/* A tile of any number of rows up to TILE_ROWS. */
ALWAYS_INLINE void tile_of(const mr_matmul_args *args, int32_t panel, int32_t row, int n_panels, int32_t n_rows,
                           const uint8_t *ahead, int lines) {
    switch (n_rows) {
    case 1:
        tile(args, panel, row, n_panels, 1, ahead, lines);
        break;
    case 2:
        tile(args, panel, row, n_panels, 2, ahead, lines);
        break;
    case 3:
        tile(args, panel, row, n_panels, 3, ahead, lines);
        break;
    case 4:
        tile(args, panel, row, n_panels, 4, ahead, lines);
        break;
    case 5:
        tile(args, panel, row, n_panels, 5, ahead, lines);
        break;
    default:
        tile(args, panel, row, n_panels, TILE_ROWS, ahead, lines);
    }
}

ALWAYS_INLINE int32_t share_of(int32_t n, int32_t parts) {
    return (n + parts - 1) / parts;
}

/* All rows of some panels, in tiles of nearly the same height. Meanwhile the next panels come from memory, evenly over the
 * tiles: the weights of these are read by the first tile, and the others leave the memory idle. */
ALWAYS_INLINE void rows(const mr_matmul_args *args, int32_t panel, int n_panels, int32_t row_first, int32_t row_last,
                        bool more) {
    int32_t n_blocks = args->k / 32, n_tiles = share_of(row_last - row_first, TILE_ROWS);
    size_t bytes = mr_panel_bytes(MR_TYPE_Q8_0, args->k) * (size_t)n_panels;
    const uint8_t *ahead = args->w + bytes / (size_t)n_panels * (size_t)(panel + n_panels);
    int32_t lines_left = more && n_tiles > 1 ? (int32_t)(bytes / LINE) : 0;
    for (int32_t row = row_first; row < row_last; n_tiles--) {
        int32_t n_rows = share_of(row_last - row, n_tiles);
        int32_t lines = share_of(share_of(lines_left, n_tiles), n_blocks);
        tile_of(args, panel, row, n_panels, n_rows, ahead, lines);
        ahead += (size_t)(lines * n_blocks) * LINE;
        lines_left = lines_left > lines * n_blocks ? lines_left - lines * n_blocks : 0;
        row += n_rows;
    }
}

void mr_matmul_q8_0_avx512(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                           int32_t row_last) {
    int32_t panel = panel_first;
    for (; panel + 2 <= panel_last; panel += 2)
        rows(args, panel, 2, row_first, row_last, panel + 4 <= panel_last);
    if (panel < panel_last)
        rows(args, panel, 1, row_first, row_last, false);
}
