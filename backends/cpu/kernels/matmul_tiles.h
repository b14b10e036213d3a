/* backends/cpu/kernels/matmul_tiles.h - how a matrix product is cut into tiles, for every instruction set.
 *
 * A tile is one or two panels (of 16 output rows) by a few activation rows; its sums stay in registers. The loops
 * around tiles, from the outside (matmul_loops.h): groups of panels, blocks of rows, chunks of k, pairs of panels,
 * tiles. Sums are kept in memory between chunks, so each sum takes k in order. For a chunk, the activations are laid
 * out once for all pairs of a group. The weights of a pair are decoded once: the first tile decodes them in registers
 * while it multiplies, and stores them for the other tiles. A separate pass for decoding took up to a tenth of the time
 * of 16 rows. The tiles also prefetch the weights that come next, in even parts, because only the first tile of a chunk
 * reads weights from memory.
 *
 * A file of kernels first includes vec_avx512.h or the like. It defines TILE_PANELS (1 or 2), TILE_ROWS (14 at most),
 * CHUNK (in k) and STEP (the k between two prefetches) and includes this file. Then it defines struct row_chunk, struct
 * weight_chunk and the functions that matmul_loops.h names, and includes matmul_loops.h. Everything is resolved at
 * compile time. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_TILES_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_TILES_H

#include <stdbool.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/matmul_panels.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* gcc cannot unroll sanitized loops, and warns */
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    ROW_BLOCK = 84,  /* a multiple of every TILE_ROWS */
    GROUP_PAIRS = 8, /* pairs of panels in a group */
    LINE = 64,       /* bytes of a cache line */
};

typedef struct row_chunk row_chunk;       /* a chunk of one activation row, laid out */
typedef struct weight_chunk weight_chunk; /* a chunk of a pair of panels, decoded */

/* Where a tile takes its weights from. PANELS: it is the only tile of the chunk and decodes panels. PANELS_TO_KEEP: it
 * is the first of several tiles, decodes panels and keeps the result. KEPT: a later tile, which reads this result. */
typedef enum weight_source { PANELS, PANELS_TO_KEEP, KEPT } weight_source;

typedef float tile_sums[TILE_PANELS][MR_PANEL];

/* A chunk of a pair of panels and some rows. */
typedef struct tile {
    const uint8_t *w[TILE_PANELS]; /* at the chunk's first k */
    weight_chunk *weights;         /* what the first tile keeps */
    const row_chunk *rows;
    tile_sums *sums;
    int32_t n_k;                       /* of the chunk */
    const uint8_t *ahead[TILE_PANELS]; /* memory to prefetch */
    int32_t ahead_lines;               /* cache lines of each to prefetch in every step of k */
} tile;

/* X(r) for every row that a tile may have. The sums are separate variables, because compilers moved sums in arrays to
 * memory and back within the loop of a tile. With arrays and gcc 12, tiles of 14 rows of F16 ran at 0.66 of the peak
 * and tiles of 13 rows at 0.84, or the other way round after a change elsewhere. With clang 14 all tiles ran at 0.3. */
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)

MR_ALWAYS_INLINE int32_t share_of(int32_t n, int32_t parts) {
    return (n + parts - 1) / parts;
}
MR_ALWAYS_INLINE int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Prefetches the cache lines that are due in a step of k. */
MR_ALWAYS_INLINE void ask_ahead(const tile *t, int32_t step) {
    for (int32_t i = step * t->ahead_lines; i < (step + 1) * t->ahead_lines; i++)
        for (int p = 0; p < TILE_PANELS; p++)
            __builtin_prefetch(t->ahead[p] + i * LINE, 0, 2);
}

/* y[row][columns of the panel] = sums (+ bias) (+ add). Columns past n are neither read nor written. */
MR_ALWAYS_INLINE void store_panel(const mr_matmul_args *args, int32_t row, int32_t panel, const float *sums) {
    int32_t n0 = panel * MR_PANEL, n = least(args->n - n0, MR_PANEL);
    v16 y = v16_load(sums);
    if (args->bias)
        y = v16_add(y, v16_load_n(args->bias + n0, n));
    const float *add = matmul_add_row(args, row);
    if (add)
        y = v16_add(y, v16_load_n(add + n0, n));
    v16_store_n(matmul_y_row(args, row) + n0, y, n);
}

/* Defines the kernel of one format: calls `matmul` with a constant f. */
#define MATMUL_KERNEL(name, f)                                                                                         \
    void mr_##name(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,             \
                   int32_t row_last) {                                                                                 \
        matmul(f, args, panel_first, panel_last, row_first, row_last);                                                 \
    }

#endif
