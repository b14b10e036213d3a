/* backends/cpu/kernels/attention_int8_vec.h - the products of rule T8 on 16 lanes: integer queries times Q8_0 keys, and
 * integer weights times Q8_0 values. Integer sums are exact in any order, so an instruction set is free to choose how
 * it splits the integers x. It gives these names (attention_int8_avx512.h or the like):
 *   isum, isum_start, isum_total       sums of 16 lanes
 *   bytes64, keys_load, values_load    64 bytes of a store: four k for each lane
 *   isum_add_keys, isum_add_values     adds the products of 64 bytes and four x
 *   x_store_32, x_store_64, X_AT       x of 32 elements of a query, x of the weights of a tile; where four x begin
 *   INT8_OFFSET                        added to keys: sums start at -INT8_OFFSET times the sum of x
 * The weights of hidden positions are 0, and so are their products, whatever bytes stand there.
 * Include after attention_block.h. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ATTENTION_INT8_VEC_H
#define MR_BACKENDS_CPU_KERNELS_ATTENTION_INT8_VEC_H

#include <float.h>

#include "backends/cpu/kernels/attention_block.h"
#include "engine/base/fmath.h"

enum { X_BYTES_32 = 64, X_BYTES_64 = 128 };

/* --- Queries ----------------------------------------------------------------------------------------------------- */

/* q as integers. Their scale goes into the scale of the scores. */
static void int8_query(block *u, int32_t j) {
    int32_t dim = u->args->k_dim, n = dim / 32;
    const float *q = u->q[j];
    v16i most = v16_bits(v16_set1(0.0f));
    for (int32_t d = 0; d < dim; d += 16)
        most = v16i_max(most, v16_abs_bits(v16_load(q + d)));
    float amax = mr_bits_f32((uint32_t)v16i_reduce_max(most)), scale = amax / MR_ATTENTION_INT;
    bool is_zero = !(amax <= FLT_MAX) || scale < FLT_MIN;
    v16 inverse = v16_set1(is_zero ? 0.0f : MR_ATTENTION_INT / amax);
    for (int32_t b = 0; b < n; b++, q += 32) {
        v16i x[2];
        for (int i = 0; i < 2; i++)
            x[i] = is_zero ? v16_bits(v16_set1(0.0f)) : v16_round(v16_mul(v16_load(q + 16 * i), inverse));
        x_store_32(u->x + (j * n + b) * X_BYTES_32, x);
        u->start[j * n + b] = INT8_OFFSET ? -INT8_OFFSET * v16i_reduce_add(v16i_add(x[0], x[1])) : 0;
    }
    u->scale[j] *= amax <= FLT_MAX ? scale : mr_bits_f32(0x7fc00000u);
}

/* --- Scores ------------------------------------------------------------------------------------------------------ */

/* Cache lines to prefetch for every 64 bytes of each vector: products of few queries take less time. */
MR_ALWAYS_INLINE int32_t int8_lines(const int nq) {
    return nq == 1 ? 4 : nq == 2 ? 2 : 1;
}
MR_ALWAYS_INLINE void prefetch_lines(const char *lines, int32_t first, const int32_t n) {
    if (!lines)
        return;
    MR_UNROLL
    for (int32_t i = first; i < first + n; i++)
        __builtin_prefetch(lines + i * LINE, 0, 2);
}

/* The products of nq queries from j on and the keys of nv blocks of 16 positions from i on. */
MR_ALWAYS_INLINE void int8_scores_body(block *u, const tile *t, int32_t j, int32_t i, const int nq, const int nv) {
    const int32_t dim = u->args->k_dim, n = dim / 32;
    v16 s[INT8_QUERIES][2];
    MR_UNROLL
    for (int q = 0; q < nq; q++)
        s[q][0] = s[q][1] = v16_set1(0.0f);
    for (int32_t b = 0; b < n; b++) {
        const uint8_t *x = u->x + (j * n + b) * X_BYTES_32;
        const char *lines = ahead_lines(&u->next, 8 * int8_lines(nq));
        isum sum[INT8_QUERIES][2];
        MR_UNROLL
        for (int q = 0; q < nq; q++)
            sum[q][0] = sum[q][1] = isum_start(u->start[(j + q) * n + b]);
        MR_UNROLL
        for (int32_t g = 0; g < 8; g++) {
            prefetch_lines(lines, g * int8_lines(nq), int8_lines(nq));
            MR_UNROLL
            for (int v = 0; v < nv; v++) {
                bytes64 k = keys_load(t->k[i + v] + (b * 8 + g) * 64);
                MR_UNROLL
                for (int q = 0; q < nq; q++)
                    sum[q][v] = isum_add_keys(sum[q][v], k, x + q * n * X_BYTES_32 + g * X_GROUP, X_BYTES_32 / 2);
            }
        }
        MR_UNROLL
        for (int v = 0; v < nv; v++) {
            v16 scale = v16_load_f16(scales_of(t->k[i + v], dim) + b * MR_KV_BLOCK);
            MR_UNROLL
            for (int q = 0; q < nq; q++)
                s[q][v] = v16_fma(v16_from_i32(isum_total(sum[q][v])), scale, s[q][v]);
        }
    }
    MR_UNROLL
    for (int q = 0; q < nq; q++) {
        MR_UNROLL
        for (int v = 0; v < nv; v++)
            v16_store(u->scores + (j + q) * TILE + (i + v) * 16, s[q][v]);
    }
}

/* One function for each number of queries. Vectors go in twos where the registers suffice. */
#define SHAPE(nq)                                                                                                      \
    static void int8_scores_##nq(block *u, const tile *t, int32_t j) {                                                 \
        int32_t i = 0, n = blocks_of(t->n_positions);                                                                  \
        for (; SCORE_VECTORS == 2 && i + 2 <= n; i += 2)                                                               \
            int8_scores_body(u, t, j, i, nq, 2);                                                                       \
        for (; i < n; i++)                                                                                             \
            int8_scores_body(u, t, j, i, nq, 1);                                                                       \
    }
INT8_SCORE_SHAPES
#undef SHAPE

static void int8_scores(block *u, const tile *t) {
#define SHAPE(nq) [nq] = int8_scores_##nq,
    static void (*const SCORES[])(block *, const tile *, int32_t) = {INT8_SCORE_SHAPES};
#undef SHAPE
    const int32_t most = sizeof SCORES / sizeof *SCORES - 1;
    start_ahead(u, t->v, blocks_of(t->n_positions), u->v_head_bytes);
    for (int32_t j = t->first, nq; j < t->last; j += nq) {
        nq = mr_min_i32(t->last - j, most);
        SCORES[nq](u, t, j);
    }
}

/* --- Values ------------------------------------------------------------------------------------------------------ */

/* The scales of head elements 32 b to 32 b + 31 at positions [first, last) of the tile; 0 elsewhere. */
MR_ALWAYS_INLINE void value_scales(const block *u, const tile *t, int32_t b, int32_t first, int32_t last,
                                   v16 out[TILE_BLOCKS]) {
    MR_UNROLL
    for (int i = 0; i < TILE_BLOCKS; i++) {
        out[i] = v16_set1(0.0f);
        if (i * MR_KV_BLOCK >= t->n_positions)
            continue;
        out[i] = v16_load_f16(scales_of(t->v[i], u->args->v_dim) + b * MR_KV_BLOCK);
        if (first > 0 || last < TILE)
            out[i] = select_range(out[i], first - 16 * i, last - 16 * i, v16_set1(0.0f));
    }
}

/* The greatest scale; a NaN is greater than numbers. */
MR_ALWAYS_INLINE float scale_most(const v16 d[TILE_BLOCKS]) {
    v16i most = v16i_max(v16i_max(v16_bits(d[0]), v16_bits(d[1])), v16i_max(v16_bits(d[2]), v16_bits(d[3])));
    return mr_bits_f32((uint32_t)v16i_reduce_max(most));
}

/* What a weight is multiplied by before it is rounded. */
MR_ALWAYS_INLINE void scale_steps(v16 d[TILE_BLOCKS], float most) {
    v16 inverse = v16_set1(most > 0.0f ? MR_ATTENTION_INT / most : 0.0f);
    MR_UNROLL
    for (int i = 0; i < TILE_BLOCKS; i++)
        d[i] = v16_mul(d[i], inverse);
}

/* The weights of query j as integers. */
MR_ALWAYS_INLINE void int8_weights(const block *u, int32_t j, const v16 steps[TILE_BLOCKS], uint8_t *out) {
    v16i x[TILE_BLOCKS];
    MR_UNROLL
    for (int i = 0; i < TILE_BLOCKS; i++)
        x[i] = v16_round(v16_mul(v16_load(u->scores + j * TILE + 16 * i), steps[i]));
    x_store_64(out, x);
}

/* Some queries of a tile and 32 head elements of its values. */
typedef struct values_run {
    int32_t j, b;
    _Alignas(64) uint8_t x[VALUE_QUERIES][X_BYTES_64];
    float factor[VALUE_QUERIES]; /* of the integer sums */
} values_run;

/* Adds the weighted values of the 32 elements, nv vectors of 16 at a time. */
MR_ALWAYS_INLINE void int8_values_body(block *u, const tile *t, const values_run *r, const int nq, const int nv) {
    const int32_t dim = u->args->v_dim;
    for (int32_t d = 0; d < 32; d += 16 * nv) {
        isum sum[VALUE_QUERIES][2];
        MR_UNROLL
        for (int q = 0; q < nq; q++)
            sum[q][0] = sum[q][1] = isum_start(0);
        for (int32_t i = 0; i < blocks_of(t->n_positions); i++) {
            const char *v = t->v[i] + (r->b * 32 + d) * 4, *lines = ahead_lines(&u->next, 4 * int8_lines(nq));
            MR_UNROLL
            for (int32_t g = 0; g < 4; g++, v += dim * 4) {
                prefetch_lines(lines, g * int8_lines(nq), int8_lines(nq));
                MR_UNROLL
                for (int e = 0; e < nv; e++) {
                    bytes64 bytes = values_load(v + 64 * e);
                    MR_UNROLL
                    for (int q = 0; q < nq; q++)
                        sum[q][e] = isum_add_values(sum[q][e], bytes, r->x[q] + X_AT(i, g) * X_GROUP, X_BYTES_64 / 2);
                }
            }
        }
        MR_UNROLL
        for (int q = 0; q < nq; q++) {
            float *o = u->o + (r->j + q) * dim + r->b * 32 + d;
            v16 own = v16_set1(r->factor[q]), before = v16_set1(u->factor[r->j + q]);
            MR_UNROLL
            for (int e = 0; e < nv; e++) {
                v16 x = v16_from_i32(isum_total(sum[q][e]));
                v16_store(o + 16 * e, v16_fma(x, own, v16_mul(v16_load(o + 16 * e), before)));
            }
        }
    }
}

#define SHAPE(nq)                                                                                                      \
    static void int8_values_##nq(block *u, const tile *t, const values_run *r) {                                       \
        int8_values_body(u, t, r, nq, VALUE_VECTORS);                                                                  \
    }
INT8_VALUE_SHAPES
#undef SHAPE

/* Makes the integers of query j, number q of the run. steps: those of a query that sees the whole tile. */
MR_ALWAYS_INLINE void int8_prepare(const block *u, const tile *t, int q, const v16 steps[TILE_BLOCKS], float most,
                                   values_run *r) {
    int32_t j = r->j + q;
    if (sees_all(u, t, j)) {
        int8_weights(u, j, steps, r->x[q]);
    } else {
        v16 own[TILE_BLOCKS];
        value_scales(u, t, r->b, tile_hidden(u, t, j), tile_visible(u, t, j), own);
        most = scale_most(own);
        scale_steps(own, most);
        int8_weights(u, j, own, r->x[q]);
    }
    r->factor[q] = most / MR_ATTENTION_INT * u->share[j];
}

static void int8_values(block *u, const tile *t) {
#define SHAPE(nq) [nq] = int8_values_##nq,
    static void (*const VALUES[])(block *, const tile *, const values_run *) = {INT8_VALUE_SHAPES};
#undef SHAPE
    values_run r;
    start_ahead(u, t->next_k, t->n_next, u->k_head_bytes);
    for (r.b = 0; r.b < u->args->v_dim / 32; r.b++) {
        v16 steps[TILE_BLOCKS];
        value_scales(u, t, r.b, 0, TILE, steps);
        float most = scale_most(steps);
        scale_steps(steps, most);
        int32_t parts = (t->last - t->first + VALUE_QUERIES - 1) / VALUE_QUERIES;
        for (int32_t nq, j = t->first; j < t->last; j += nq, parts--) {
            nq = (t->last - j + parts - 1) / parts;
            r.j = j;
            for (int q = 0; q < nq; q++)
                int8_prepare(u, t, q, steps, most, &r);
            VALUES[nq](u, t, &r);
        }
    }
}

#endif
