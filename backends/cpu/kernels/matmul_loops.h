/* backends/cpu/kernels/matmul_loops.h - the loops around a tile; see matmul_tiles.h. Include it last. It needs
 *   format                                             a type with block_k and block_bytes, of a panel
 *   lay_out_row(f, args, row, k, n_k, row_chunk *out)  lays out a chunk of an activation row
 *   tile_rows(f)                                       rows of a tile, where the rows of a block need several tiles
 *   run_tile_of(f, tile, weight_source from, n_rows)   continues n_rows sums over the chunk; from is a constant */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_LOOPS_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_LOOPS_H

#include <string.h>

#include "backends/cpu/kernels/matmul_tiles.h"

_Static_assert(ROW_BLOCK % TILE_ROWS == 0, "whole tiles fill a block of rows");

/* The call, and the group of panels and the block of rows that are computed now. */
typedef struct job {
    const mr_matmul_args *args;
    size_t panel_bytes;
    int32_t panel_last;      /* of the call */
    int32_t panel, n_panels; /* of the group */
    int32_t row, n_rows;     /* of the block */
} job;

typedef struct scratch {
    weight_chunk weights;
    row_chunk rows[ROW_BLOCK];
    _Alignas(LINE) tile_sums sums[GROUP_PAIRS][ROW_BLOCK];
} scratch;

/* Panel `panel` at k. If the last pair has no second panel, the last panel is multiplied twice, and its second sums are
 * not stored. */
MR_ALWAYS_INLINE const uint8_t *weights_at(const format f, const job *j, int32_t panel, int32_t k) {
    panel = least(panel, j->panel_last - 1);
    return j->args->w + j->panel_bytes * (size_t)panel + (size_t)(k / f.block_k) * (size_t)f.block_bytes;
}

/* Where panel p of the next pair begins: the next pair at k, else the first pair at the next chunk, else the first pair
 * of the next group. After the last pair of the call, the present pair: then nothing is prefetched. */
MR_ALWAYS_INLINE const uint8_t *next_weights(const format f, const job *j, int32_t pair, int32_t k, int p) {
    if ((pair + 1) * TILE_PANELS < j->n_panels)
        return weights_at(f, j, j->panel + (pair + 1) * TILE_PANELS + p, k);
    if (k + CHUNK < j->args->k)
        return weights_at(f, j, j->panel + p, k + CHUNK);
    if (j->panel + j->n_panels < j->panel_last)
        return weights_at(f, j, j->panel + j->n_panels + p, 0);
    return weights_at(f, j, j->panel + pair * TILE_PANELS + p, k);
}

/* Multiplies all rows of the block by a chunk of one pair, in tiles of nearly the same height. lines: cache lines to
 * prefetch from each panel. */
MR_ALWAYS_INLINE void run_pair(const format f, const job *j, tile *t, int32_t lines) {
    int32_t n_tiles = j->n_rows <= TILE_ROWS ? 1 : share_of(j->n_rows, tile_rows(f)), n_steps = share_of(t->n_k, STEP);
    for (int32_t left = j->n_rows; left > 0; n_tiles--) {
        int32_t n_rows = left / n_tiles;
        t->ahead_lines = share_of(share_of(lines, n_steps), n_tiles);
        if (n_rows == j->n_rows)
            run_tile_of(f, t, PANELS, n_rows);
        else if (left == j->n_rows)
            run_tile_of(f, t, PANELS_TO_KEEP, n_rows);
        else
            run_tile_of(f, t, KEPT, n_rows);
        lines -= least(lines, t->ahead_lines * n_steps);
        for (int p = 0; p < TILE_PANELS; p++)
            t->ahead[p] += t->ahead_lines * n_steps * LINE;
        t->rows += n_rows;
        t->sums += n_rows;
        left -= n_rows;
    }
}

MR_ALWAYS_INLINE void run_block(const format f, const job *j, scratch *s) {
    const int32_t k_end = j->args->k, n_pairs = share_of(j->n_panels, TILE_PANELS);
    for (int32_t pair = 0; pair < n_pairs; pair++)
        memset(s->sums[pair], 0, sizeof s->sums[0][0] * (size_t)j->n_rows);
    for (int32_t k = 0; k < k_end; k += CHUNK) {
        const int32_t n_k = least(CHUNK, k_end - k);
        for (int32_t r = 0; r < j->n_rows; r++)
            lay_out_row(f, j->args, j->row + r, k, n_k, &s->rows[r]);
        for (int32_t pair = 0; pair < n_pairs; pair++) {
            tile t = {.weights = &s->weights, .rows = s->rows, .sums = s->sums[pair], .n_k = n_k};
            for (int p = 0; p < TILE_PANELS; p++) {
                t.w[p] = weights_at(f, j, j->panel + pair * TILE_PANELS + p, k);
                t.ahead[p] = next_weights(f, j, pair, k, p);
            }
            run_pair(f, j, &t, t.ahead[0] == t.w[0] ? 0 : share_of(n_k * f.block_bytes / f.block_k, LINE));
        }
    }
    for (int32_t r = 0; r < j->n_rows; r++)
        for (int32_t p = 0; p < j->n_panels; p++)
            store_panel(j->args, j->row + r, j->panel + p, s->sums[p / TILE_PANELS][r][p % TILE_PANELS]);
}

MR_ALWAYS_INLINE void matmul(const format f, const mr_matmul_args *args, int32_t panel_first, int32_t panel_last,
                             int32_t row_first, int32_t row_last) {
    scratch s;
    const int32_t group =
        TILE_PANELS * (row_last - row_first == 1 ? 1 : GROUP_PAIRS); /* one row: a pair is finished before the next */
    job j = {.args = args,
             .panel_bytes = (size_t)share_of(args->k, f.block_k) * (size_t)f.block_bytes,
             .panel_last = panel_last};
    for (j.panel = panel_first; j.panel < panel_last; j.panel += j.n_panels) {
        j.n_panels = least(group, panel_last - j.panel);
        int32_t n_blocks = share_of(row_last - row_first, ROW_BLOCK);
        for (j.row = row_first; j.row < row_last; j.row += j.n_rows, n_blocks--) {
            j.n_rows = row_last - j.row;
            if (n_blocks > 1) /* blocks of nearly the same size, in whole tiles */
                j.n_rows = (share_of(j.n_rows, n_blocks) + tile_rows(f) / 2) / tile_rows(f) * tile_rows(f);
            run_block(f, &j, &s);
        }
    }
}

#endif
