/* backends/cpu/kernels/matmul_float_vec.h - rule M for F32, F16 and BF16 weights on 16 lanes: one fma for each k.
 * Include it after vec_avx512.h or the like and the constants of matmul_tiles.h. Half precision is converted once for
 * all tiles of a chunk. Activations are copied to rows that lie close together, because rows that are a power of two
 * apart share cache sets. BF16 weights come in pairs of k, and the odd k of a pair is added first; activations are laid
 * out in that order. VDPBF16PS computes the same bits (NUMERICS.md), but takes four times as long as two fma on Intel's
 * cores (Emerald Rapids: 0.74 ns against 0.18). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_FLOAT_VEC_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_FLOAT_VEC_H

#include <string.h>

#include "backends/cpu/kernels/matmul_tiles.h"
#include "engine/tensor/f16.h"

typedef struct format {
    int block_k, block_bytes; /* of 16 rows */
} format;

static const format F32 = {1, MR_PANEL * 4}, F16 = {1, MR_PANEL * 2}, BF16 = {2, MR_PANEL * 4};

struct row_chunk {
    float x[CHUNK + 16]; /* + 16: a row has an odd number of cache lines */
};

struct weight_chunk {
    _Alignas(LINE) float w[TILE_PANELS][CHUNK][MR_PANEL];
};

MR_ALWAYS_INLINE bool is_f32(const format f) {
    return f.block_bytes == MR_PANEL * 4 && f.block_k == 1;
}

MR_ALWAYS_INLINE void lay_out_row(const format f, const mr_matmul_args *args, int32_t row, int32_t k, int32_t n_k,
                                  row_chunk *out) {
    const uint8_t *a = matmul_a_row(args, row);
    if (f.block_k == 1) {
        memcpy(out->x, (const float *)(const void *)a + k, (size_t)n_k * sizeof *out->x);
        return;
    }
    const uint16_t *x = (const uint16_t *)(const void *)a + k;
    for (int32_t i = 0; i < n_k; i += 2) { /* the odd k first; an odd last k is followed by a zero */
        out->x[i] = mr_bf16_to_f32(x[i + 1]);
        out->x[i + 1] = mr_bf16_to_f32(x[i]);
    }
}

/* The weights that rule M multiplies in step k, from a panel in its own layout. */
MR_ALWAYS_INLINE v16 load_weights(const format f, const uint8_t *w, int32_t k) {
    if (is_f32(f))
        return v16_load((const float *)(const void *)w + k * MR_PANEL);
    const uint16_t *halves = (const uint16_t *)(const void *)w;
    if (f.block_k == 1)
        return v16_load_f16(halves + k * MR_PANEL);
    return k % 2 ? v16_load_bf16_even(halves + (k - 1) * MR_PANEL) : v16_load_bf16_odd(halves + k * MR_PANEL);
}

/* The weights of panel p for step k. */
MR_ALWAYS_INLINE v16 weights_of(const format f, const tile *t, weight_source from, int p, int32_t k) {
    if (from == KEPT && !is_f32(f))
        return v16_load(t->weights->w[p][k]);
    v16 w = load_weights(f, t->w[p], k);
    if (from == PANELS_TO_KEEP && !is_f32(f))
        v16_store(t->weights->w[p][k], w);
    return w;
}

/* Row r of a tile: a##r and b##r are its sums of the two panels. from, n_rows and r are constants. */
#define OPEN(r)                                                                                                        \
    v16 a##r = v16_load(sums[r < n_rows ? r : 0][0]), b##r = v16_load(sums[r < n_rows ? r : 0][TILE_PANELS - 1]);
#define ADD_PRODUCT(r)                                                                                                 \
    if (r < n_rows) {                                                                                                  \
        v16 x = v16_set1(rows[r].x[k]);                                                                                \
        a##r = v16_fma(w0, x, a##r);                                                                                   \
        if (TILE_PANELS > 1)                                                                                           \
            b##r = v16_fma(w1, x, b##r);                                                                               \
    }
#define CLOSE(r)                                                                                                       \
    if (r < n_rows) {                                                                                                  \
        v16_store(sums[r][0], a##r);                                                                                   \
        if (TILE_PANELS > 1)                                                                                           \
            v16_store(sums[r][TILE_PANELS - 1], b##r);                                                                 \
    }

/* acc = fma(w[k], x[k], acc) */
MR_ALWAYS_INLINE void run_tile(const format f, const tile *t, weight_source from, int n_rows) {
    const row_chunk *rows = t->rows;
    tile_sums *sums = t->sums;
    const int32_t n_k = share_of(t->n_k, f.block_k) * f.block_k;
    EACH_ROW(OPEN)
    for (int32_t k = 0, step = 0; k < n_k; step++) {
        ask_ahead(t, step);
        for (const int32_t end = least(k + STEP, n_k); k < end; k++) {
            const v16 w0 = weights_of(f, t, from, 0, k), w1 = weights_of(f, t, from, TILE_PANELS - 1, k);
            EACH_ROW(ADD_PRODUCT)
        }
    }
    EACH_ROW(CLOSE)
}

MR_ALWAYS_INLINE int32_t tile_rows(const format f) {
    (void)f;
    return TILE_ROWS;
}

/* Calls run_tile with a constant number of rows. The only tile of a chunk may have any height up to TILE_ROWS; several
 * tiles have at least half of TILE_ROWS each. */
MR_ALWAYS_INLINE void run_tile_of(const format f, const tile *t, weight_source from, int32_t n_rows) {
#define HEIGHT(n)                                                                                                      \
    if (n <= TILE_ROWS && n_rows == n && (from == PANELS || n >= TILE_ROWS / 2)) {                                     \
        run_tile(f, t, from, n <= TILE_ROWS ? n : 1);                                                                  \
        return;                                                                                                        \
    }
    HEIGHT(1)
    HEIGHT(2)
    HEIGHT(3)
    HEIGHT(4)
    HEIGHT(5)
    HEIGHT(6)
    HEIGHT(7)
    HEIGHT(8)
    HEIGHT(9)
    HEIGHT(10)
    HEIGHT(11)
    HEIGHT(12)
    HEIGHT(13)
    HEIGHT(14)
#undef HEIGHT
}

#include "backends/cpu/kernels/matmul_loops.h"

#endif
