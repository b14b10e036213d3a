/* backends/cpu/kernels/matmul_q8_0_avx512.c - rule M for Q8_0 with VNNI.
 * A job is two panels times up to ROW_BLOCK rows. It walks K in chunks whose weights stay in L1 for all its tiles; sums
 * wait in memory from one chunk to the next, so each walks K in order. Meanwhile the panels after these come from
 * memory, evenly over the tiles: these weights are read by the first tile alone, and the others leave the memory idle. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_avx512.h"

enum {
    PANELS = 2,
    TILE_ROWS = 6,
    ROW_BLOCK = 96,
    FEW_ROWS = 24,
    CHUNK = 16, /* blocks of 32 k, for few rows: more of them gain more from long loops than from L1 */
    LINE = 64,
};

/* Panels [panel, panel + n_panels) times rows [row, row + n_rows), at a chunk of K. */
typedef struct job {
    const mr_matmul_args *args;
    int32_t panel, row, n_rows;
    int32_t first, last;  /* blocks of 32 k */
    const uint8_t *ahead; /* what is prefetched next */
    int32_t lines_left, tiles_left;
    __m512 (*sums)[PANELS]; /* [n_rows] */
} job;

/* n_panels x n_rows sums of the rows from idx on, both constants. Asks for `lines` cache lines for every 32 k. */
ALWAYS_INLINE void tile(job *j, int32_t idx, int n_panels, int n_rows, int lines) {
    const mr_panel_q8_0 *w[PANELS];
    a8_row a[TILE_ROWS];
    __m512 acc[PANELS][TILE_ROWS];
    const uint8_t *ahead = j->ahead;
    size_t panel_bytes = mr_panel_bytes(MR_TYPE_Q8_0, j->args->k);
    for (int p = 0; p < n_panels; p++)
        w[p] = (const mr_panel_q8_0 *)(const void *)(j->args->w + (size_t)(j->panel + p) * panel_bytes);
    for (int r = 0; r < n_rows; r++)
        a[r] = a8_row_at(matmul_a_row(j->args, j->row + idx + r), j->args->k);
    for (int p = 0; p < n_panels; p++)
        for (int r = 0; r < n_rows; r++)
            acc[p][r] = j->first ? j->sums[idx + r][p] : _mm512_setzero_ps();
    for (int32_t b = j->first; b < j->last; b++) {
        __m512i sum[PANELS][TILE_ROWS];
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
            j->sums[idx + r][p] = acc[p][r];
    j->ahead = ahead;
}

/* A tile of any number of rows up to TILE_ROWS. */
ALWAYS_INLINE void tile_of(job *j, int32_t idx, int n_panels, int32_t n_rows, int lines) {
    switch (n_rows) {
    case 1:
        tile(j, idx, n_panels, 1, lines);
        break;
    case 2:
        tile(j, idx, n_panels, 2, lines);
        break;
    case 3:
        tile(j, idx, n_panels, 3, lines);
        break;
    case 4:
        tile(j, idx, n_panels, 4, lines);
        break;
    case 5:
        tile(j, idx, n_panels, 5, lines);
        break;
    default:
        tile(j, idx, n_panels, TILE_ROWS, lines);
    }
}

ALWAYS_INLINE int32_t share_of(int32_t n, int32_t parts) {
    return (n + parts - 1) / parts;
}

/* All rows of the job over one chunk, in tiles of nearly the same height. */
ALWAYS_INLINE void run_chunk(job *j, int n_panels) {
    int32_t n_tiles = share_of(j->n_rows, TILE_ROWS), n_blocks = j->last - j->first;
    for (int32_t idx = 0; idx < j->n_rows; n_tiles--) {
        int32_t n_rows = share_of(j->n_rows - idx, n_tiles);
        int32_t lines = share_of(share_of(j->lines_left, j->tiles_left--), n_blocks);
        tile_of(j, idx, n_panels, n_rows, lines);
        j->lines_left = j->lines_left > lines * n_blocks ? j->lines_left - lines * n_blocks : 0;
        idx += n_rows;
    }
}

/* All rows of some panels; `more` panels come after them. */
ALWAYS_INLINE void run_panels(const mr_matmul_args *args, int32_t panel, int n_panels, int32_t row_first,
                              int32_t row_last, bool more) {
    __m512 sums[ROW_BLOCK][PANELS];
    size_t bytes = mr_panel_bytes(MR_TYPE_Q8_0, args->k);
    int32_t n_blocks = args->k / 32, n_rows = row_last - row_first, n_parts = share_of(n_rows, ROW_BLOCK);
    int32_t chunk = n_rows <= FEW_ROWS && n_blocks > CHUNK ? CHUNK : n_blocks;
    job j = {.args = args,
             .panel = panel,
             .row = row_first,
             .ahead = args->w + bytes * (size_t)(panel + n_panels),
             .lines_left = more && n_rows > TILE_ROWS ? (int32_t)(bytes * (size_t)n_panels / LINE) : 0,
             .tiles_left = (share_of(n_rows, TILE_ROWS) + n_parts - 1) * share_of(n_blocks, chunk), /* or a few less */
             .sums = sums};
    for (; j.row < row_last; j.row += j.n_rows, n_parts--) {
        j.n_rows = share_of(row_last - j.row, n_parts);
        for (j.first = 0; j.first < n_blocks; j.first = j.last) {
            j.last = j.first + chunk < n_blocks ? j.first + chunk : n_blocks;
            run_chunk(&j, n_panels);
        }
        for (int32_t r = 0; r < j.n_rows; r++)
            for (int p = 0; p < n_panels; p++)
                store_panel(args, j.row + r, panel + p, sums[r][p]);
    }
}

void mr_matmul_q8_0_avx512(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                           int32_t row_last) {
    int32_t panel = panel_first;
    for (; panel + PANELS <= panel_last; panel += PANELS)
        run_panels(args, panel, PANELS, row_first, row_last, panel + 2 * PANELS <= panel_last);
    if (panel < panel_last)
        run_panels(args, panel, 1, row_first, row_last, false);
}
