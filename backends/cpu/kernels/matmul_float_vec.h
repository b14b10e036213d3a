/* backends/cpu/kernels/matmul_float_vec.h - rule M for F32, F16 and BF16 weights on 16 lanes: one fma for each k.
 * Include after vec_avx512.h or the like and the constants of matmul_tiles.h. Half precision is converted once for all
 * tiles of a chunk; activations are copied to rows that lie close, because rows of a power of two apart share cache sets.
 * BF16 comes in pairs of k, the odd one first; activations are laid out in that order. VDPBF16PS computes the same bits
 * (NUMERICS.md), but takes four times as long as two fma on Intel's cores (Emerald Rapids: 0.74 ns against 0.18). */
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
    float x[CHUNK + 16]; /* 16: odd in cache lines */
};

struct weight_chunk {
    _Alignas(LINE) float w[TILE_PANELS][CHUNK][MR_PANEL];
};

MR_INLINE bool is_f32(const format f) {
    return f.block_bytes == MR_PANEL * 4 && f.block_k == 1;
}

/* Where k stands among the k of rule M: those of a pair change places. */
MR_INLINE int32_t place_of(const format f, int32_t k) {
    return f.block_k == 2 ? k ^ 1 : k;
}

MR_INLINE void lay_out_row(const format f, const mr_matmul_args *args, int32_t row, int32_t k, int32_t n_k,
                           row_chunk *out) {
    const uint8_t *a = matmul_a_row(args, row);
    if (f.block_k == 1) {
        memcpy(out->x, (const float *)(const void *)a + k, (size_t)n_k * sizeof *out->x);
        return;
    }
    const uint16_t *x = (const uint16_t *)(const void *)a + k;
    for (int32_t i = 0; i < share_of(n_k, 2) * 2; i++)
        out->x[place_of(f, i)] = mr_bf16_to_f32(x[i]); /* behind an odd k stands a zero */
}

/* The weights that rule M takes k-th. */
MR_INLINE v16 load_weights(const format f, const uint8_t *w, int32_t k) {
    if (is_f32(f))
        return v16_load((const float *)(const void *)w + k * MR_PANEL);
    const uint16_t *halves = (const uint16_t *)(const void *)w;
    if (f.block_k == 1)
        return v16_load_f16(halves + k * MR_PANEL);
    return k % 2 ? v16_load_bf16_even(halves + (k - 1) * MR_PANEL) : v16_load_bf16_odd(halves + k * MR_PANEL);
}

MR_INLINE v16 weights_of(const format f, const tile *t, weight_source from, int p, int32_t k) {
    if (from == KEPT && !is_f32(f))
        return v16_load(t->weights->w[p][k]);
    v16 w = load_weights(f, t->w[p], k);
    if (from == PANELS_TO_KEEP && !is_f32(f))
        v16_store(t->weights->w[p][k], w);
    return w;
}

/* acc = fma(w[k], x[k], acc) */
MR_INLINE void add_products(const format f, const tile *t, weight_source from, int n_rows, int32_t k,
                            v16 acc[TILE_PANELS][TILE_ROWS]) {
    v16 w[TILE_PANELS];
    UNROLL
    for (int p = 0; p < TILE_PANELS; p++)
        w[p] = weights_of(f, t, from, p, k);
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        v16 x = v16_set1(t->rows[r].x[k]);
        UNROLL
        for (int p = 0; p < TILE_PANELS; p++)
            acc[p][r] = v16_fma(w[p], x, acc[p][r]);
    }
}

/* from and n_rows are constants. */
MR_INLINE void run_tile(const format f, const tile *t, weight_source from, int n_rows) {
    v16 acc[TILE_PANELS][TILE_ROWS];
    const uint8_t *ahead = t->ahead[0];
    const ptrdiff_t other = t->ahead[TILE_PANELS - 1] - ahead;
    UNROLL
    for (int i = 0; i < n_rows * TILE_PANELS; i++)
        acc[i % TILE_PANELS][i / TILE_PANELS] = v16_load(t->sums[i / TILE_PANELS][i % TILE_PANELS]);
    for (int32_t k_step = 0; k_step < t->n_k; k_step += STEP) {
        for (int32_t i = 0; i < t->ahead_lines; i++, ahead += LINE) {
            __builtin_prefetch(ahead, 0, 2);
            if (TILE_PANELS > 1)
                __builtin_prefetch(ahead + other, 0, 2);
        }
        for (int32_t k = k_step; k < least(k_step + STEP, t->n_k); k += f.block_k) {
            UNROLL
            for (int i = 0; i < f.block_k; i++)
                add_products(f, t, from, n_rows, k + i, acc);
        }
    }
    UNROLL
    for (int i = 0; i < n_rows * TILE_PANELS; i++)
        v16_store(t->sums[i / TILE_PANELS][i % TILE_PANELS], acc[i % TILE_PANELS][i / TILE_PANELS]);
}

/* Tiles of every height up to TILE_ROWS; where there are several, of at least half of that. */
MR_INLINE void run_tile_of(const format f, const tile *t, weight_source from, int32_t n_rows) {
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
