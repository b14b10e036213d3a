/* backends/cpu/kernels/matmul_int8_tiles.h - rule M for quantised weights in the tiles of matmul_tiles.h: reads the
 * weights of a chunk, either from the panels or as the first tile has decoded and kept them. Include it after the
 * constants of matmul_tiles.h and of matmul_int8_formats.h. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_TILES_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_TILES_H

#include <string.h>

#include "backends/cpu/kernels/matmul_int8_formats.h"
#include "backends/cpu/kernels/matmul_tiles.h"

enum {
    SUBS = CHUNK / 32, /* sub-blocks of 32 k in a chunk */
    HALVES = CHUNK / 16,
};

struct weight_chunk {
    _Alignas(LINE) float scale[TILE_PANELS][HALVES][MR_PANEL];
    float min[TILE_PANELS][HALVES][MR_PANEL];
    float factor[TILE_PANELS][HALVES][MR_PANEL];
    uint8_t bytes[TILE_PANELS][SUBS][8][MR_PANEL * 4];
};

/* The block that holds sub-block j of a chunk, and the number of this sub-block in the block. */
MR_ALWAYS_INLINE const uint8_t *block_of(const format f, const uint8_t *w, int32_t j) {
    return w + (size_t)(j / (f.block_k / 32)) * (size_t)f.block_bytes;
}
MR_ALWAYS_INLINE int sub_of(const format f, int32_t j) {
    return j % (f.block_k / 32);
}

/* Group g, scale or minimum h of sub-block j of panel p. Bytes that need no decoding are not kept. */
MR_ALWAYS_INLINE v64 group_of(const format f, const tile *t, weight_source from, int p, int32_t j, int g) {
    uint8_t *kept = t->weights->bytes[p][j][g];
    if (from == KEPT && !f.is_plain)
        return v64_load(kept);
    v64 group = f.group(block_of(f, t->w[p], j), sub_of(f, j), g);
    if (from == PANELS_TO_KEEP && !f.is_plain)
        v64_store(kept, group);
    return group;
}

MR_ALWAYS_INLINE v16 scale_of(const format f, const tile *t, weight_source from, int p, int32_t j, int h) {
    float *kept = t->weights->scale[p][j * f.n_sums + h];
    if (from == KEPT)
        return v16_load(kept);
    v16 scale = f.scale(block_of(f, t->w[p], j), sub_of(f, j), h);
    if (from == PANELS_TO_KEEP)
        v16_store(kept, scale);
    return scale;
}

MR_ALWAYS_INLINE v16 min_of(const format f, const tile *t, weight_source from, int p, int32_t j, int h) {
    float *kept = t->weights->min[p][j * f.n_mins + h];
    if (from == KEPT)
        return v16_load(kept);
    v16 min = f.min(block_of(f, t->w[p], j), sub_of(f, j), h);
    if (from == PANELS_TO_KEEP)
        v16_store(kept, min);
    return min;
}

/* As floats: the products with sums of 16 k are exact. */
MR_ALWAYS_INLINE v16 factor_of(const format f, const tile *t, weight_source from, int p, int32_t j, int h) {
    float *kept = t->weights->factor[p][j * f.n_sums + h];
    if (from == KEPT)
        return v16_load(kept);
    v16 factor = v16_load_i8(f.factors(block_of(f, t->w[p], j), sub_of(f, j), h));
    if (from == PANELS_TO_KEEP)
        v16_store(kept, factor);
    return factor;
}

#endif
