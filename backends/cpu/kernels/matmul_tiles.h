/* backends/cpu/kernels/matmul_tiles.h - what a matrix product is cut into, for every instruction set.
 *
 * A tile is one or two panels (of 16 output rows) by a few activation rows, its sums in registers. Around it: groups
 * of panels - blocks of rows - chunks of k - pairs of panels - tiles (matmul_loops.h). Sums wait in memory between
 * chunks, so each walks K in order. For a chunk the activations are laid out once for all pairs of a group, and the
 * weights of a pair are decoded once: in registers by the first tile, which keeps them for the others while it
 * multiplies. A pass of its own for that took up to a tenth of the time of 16 rows. Meanwhile the weights that come
 * next are asked for, evenly over the tiles: only the first tile of a chunk reads them from memory.
 *
 * A file of kernels includes vec_avx512.h or the like, defines TILE_PANELS (1 or 2), TILE_ROWS (14 at most), CHUNK (k)
 * and STEP (k from one asking ahead to the next), includes this, defines struct row_chunk and struct weight_chunk and
 * the functions that matmul_loops.h names, and includes that. Everything is resolved at compile time. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_TILES_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_TILES_H

#include <stdbool.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/matmul_panels.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* gcc cannot unroll checked loops, and warns */
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    ROW_BLOCK = 84,  /* a multiple of every TILE_ROWS */
    GROUP_PAIRS = 8, /* of panels */
    LINE = 64,       /* bytes of a cache line */
};

typedef struct row_chunk row_chunk;       /* a chunk of one activation row, laid out */
typedef struct weight_chunk weight_chunk; /* a chunk of a pair of panels, decoded */

/* Where a tile takes its weights from: the only tile of a chunk, the first, and the others. */
typedef enum weight_source { PANELS, PANELS_TO_KEEP, KEPT } weight_source;

typedef float tile_sums[TILE_PANELS][MR_PANEL];

/* A chunk of a pair of panels and some rows. */
typedef struct tile {
    const uint8_t *w[TILE_PANELS]; /* at the chunk's first k */
    weight_chunk *weights;         /* what the first tile keeps */
    const row_chunk *rows;
    tile_sums *sums;
    int32_t n_k;                       /* of the chunk */
    const uint8_t *ahead[TILE_PANELS]; /* what will be read next */
    int32_t ahead_lines;               /* of each, to ask for at every step of k */
} tile;

/* X(r) for every row that a tile may have, written out. Sums in arrays went to memory and back within a tile's loop
 * wherever a compiler saw fit: with gcc 12 tiles of 14 rows of F16 ran at 0.66 of the peak so and those of 13 at 0.84,
 * or the other way round after a change elsewhere; with clang 14 all of them at 0.3. */
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)

MR_INLINE int32_t share_of(int32_t n, int32_t parts) {
    return (n + parts - 1) / parts;
}
MR_INLINE int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Asks for the lines that come next, those that are due in a step of k. */
MR_INLINE void ask_ahead(const tile *t, int32_t step) {
    for (int32_t i = step * t->ahead_lines; i < (step + 1) * t->ahead_lines; i++)
        for (int p = 0; p < TILE_PANELS; p++)
            __builtin_prefetch(t->ahead[p] + i * LINE, 0, 2);
}

/* y[row][panel's lanes] = sums (+ bias) (+ add); lanes past n are neither read nor written. */
MR_INLINE void store_panel(const mr_matmul_args *args, int32_t row, int32_t panel, const float *sums) {
    int32_t n0 = panel * MR_PANEL, n = least(args->n - n0, MR_PANEL);
    v16 y = v16_load(sums);
    if (args->bias)
        y = v16_add(y, v16_load_n(args->bias + n0, n));
    const float *add = matmul_add_row(args, row);
    if (add)
        y = v16_add(y, v16_load_n(add + n0, n));
    v16_store_n(matmul_y_row(args, row) + n0, y, n);
}

/* One kernel for a format that is a constant, by `matmul`. */
#define MATMUL_KERNEL(name, f)                                                                                         \
    void mr_##name(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,             \
                   int32_t row_last) {                                                                                 \
        matmul(f, args, panel_first, panel_last, row_first, row_last);                                                 \
    }

#endif
