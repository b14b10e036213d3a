/* backends/cpu/kernels/matmul_float_vec.h - rule M for F32 and F16 weights on 16 lanes: one fma for each k.
 * Include after vec_avx512.h or the like and the constants of matmul_tiles.h. Half precision is converted once for all
 * tiles of a chunk; activations are copied to rows that lie close, because rows of a power of two apart share cache sets. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_FLOAT_VEC_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_FLOAT_VEC_H

#include <string.h>

#include "backends/cpu/kernels/matmul_tiles.h"

typedef struct format {
    int block_k, block_bytes; /* 1 k of 16 rows */
} format;

static const format F32 = {1, MR_PANEL * 4}, F16 = {1, MR_PANEL * 2};

struct row_chunk {
    float x[CHUNK + 16]; /* 16: odd in cache lines */
};

struct weight_chunk {
    _Alignas(LINE) float w[TILE_PANELS][CHUNK][MR_PANEL];
};

MR_INLINE bool is_half(const format f) {
    return f.block_bytes == MR_PANEL * 2;
}

MR_INLINE void lay_out_row(const format f, const mr_matmul_args *args, int32_t row, int32_t k, int32_t n_k,
                           row_chunk *out) {
    (void)f;
    memcpy(out->x, (const float *)(const void *)matmul_a_row(args, row) + k, (size_t)n_k * sizeof *out->x);
}

MR_INLINE void decode(const format f, const tile *t, bool direct, weight_chunk *out) {
    for (int p = 0; !direct && is_half(f) && p < TILE_PANELS; p++)
        for (int32_t k = 0; k < t->n_k; k++)
            v16_store(out->w[p][k], v16_load_f16((const uint16_t *)(const void *)t->w[p] + k * MR_PANEL));
}

MR_INLINE v16 weights_of(const format f, const tile *t, bool direct, int p, int32_t k) {
    if (!is_half(f))
        return v16_load((const float *)(const void *)t->w[p] + k * MR_PANEL);
    return direct ? v16_load_f16((const uint16_t *)(const void *)t->w[p] + k * MR_PANEL)
                  : v16_load(t->weights->w[p][k]);
}

/* direct and n_rows are constants. */
MR_INLINE void run_tile(const format f, const tile *t, bool direct, int n_rows) {
    v16 acc[TILE_PANELS][TILE_ROWS];
    const uint8_t *ahead = t->ahead[0];
    const ptrdiff_t other = t->ahead[TILE_PANELS - 1] - ahead;
    UNROLL
    for (int i = 0; i < n_rows * TILE_PANELS; i++)
        acc[i % TILE_PANELS][i / TILE_PANELS] = v16_load(t->sums[i / TILE_PANELS][i % TILE_PANELS]);
    for (int32_t from = 0; from < t->n_k; from += STEP) {
        for (int32_t i = 0; i < t->ahead_lines; i++, ahead += LINE) {
            _mm_prefetch((const char *)ahead, _MM_HINT_T1);
            if (TILE_PANELS > 1)
                _mm_prefetch((const char *)ahead + other, _MM_HINT_T1);
        }
        for (int32_t k = from; k < least(from + STEP, t->n_k); k++) {
            v16 w[TILE_PANELS];
            UNROLL
            for (int p = 0; p < TILE_PANELS; p++)
                w[p] = weights_of(f, t, direct, p, k);
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                v16 x = v16_set1(t->rows[r].x[k]);
                UNROLL
                for (int p = 0; p < TILE_PANELS; p++)
                    acc[p][r] = v16_fma(w[p], x, acc[p][r]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n_rows * TILE_PANELS; i++)
        v16_store(t->sums[i / TILE_PANELS][i % TILE_PANELS], acc[i % TILE_PANELS][i / TILE_PANELS]);
}

/* Tiles of every height up to TILE_ROWS. */
MR_INLINE void run_tile_of(const format f, const tile *t, bool direct, int32_t n_rows) {
#define HEIGHT(n)                                                                                                      \
    if (n <= TILE_ROWS && n_rows == n) {                                                                               \
        run_tile(f, t, direct &&n <= DIRECT_ROWS, n <= TILE_ROWS ? n : 1);                                             \
        return;                                                                                                        \
    }
    HEIGHT(1)
    HEIGHT(2)
    HEIGHT(3)
    HEIGHT(4)
    if (direct)
        return;
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
