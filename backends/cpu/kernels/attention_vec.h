/* backends/cpu/kernels/attention_vec.h - rule T on 16 lanes, the bits of attention_scalar.c.
 * Layout: k [block][kv head][head_dim][16], v [block][kv head][16][head_dim], f16 or f32.
 *
 * A block of queries (rows of one sequence in position order, times the heads that share a KV head) walks the tiles of
 * 64 positions together: scores (lanes are positions), weights, values (lanes are head elements). With a few queries
 * f16 is converted in registers, once for all of a product; with more, a part of the tile is converted once into a
 * stage of 16 KiB for the whole block. Order of accumulation: that of rule T for each query, whatever the block.
 * Positions that a query does not see: their scores are computed where a vector holds them, then replaced; their
 * values are never multiplied, because 0 * infinity is not 0.
 * Include after vec_avx2.h or vec_avx512.h with PRODUCT_SHAPES defined. Threads: pure functions. Stack: see block. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ATTENTION_VEC_H
#define MR_BACKENDS_CPU_KERNELS_ATTENTION_VEC_H

#include <float.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/attention_product.h"
#include "backends/cpu/kernels/vec_exp.h"

enum {
    TILE = 64,
    PARTITION = 512,
    TILE_BLOCKS = TILE / MR_KV_BLOCK,
    BLOCK_QUERIES = 48,
    BLOCK_SUMS = 6144, /* floats: 48 queries of 128 elements, 24 of 256 */
    STAGE_WIDTH = 64,  /* head elements staged at once */
    STAGE_QUERIES = 8, /* more queries than this are worth a stage */
};

/* Queries that share a sequence and a KV head, in order of position, and their state; 60 KiB. */
typedef struct block {
    const mr_attention_args *args;
    const int32_t *kv_blocks;
    int32_t kv_head, n;
    bool is_half, is_staged;
    const float *q[BLOCK_QUERIES];
    float *out[BLOCK_QUERIES]; /* holds the sums of the merged partitions until the end */
    int32_t n_visible[BLOCK_QUERIES];
    float m[BLOCK_QUERIES], all_m[BLOCK_QUERIES], factor[BLOCK_QUERIES];
    _Alignas(64) float l[BLOCK_QUERIES * 16];
    float all_l[BLOCK_QUERIES * 16];
    float scores[BLOCK_QUERIES * TILE]; /* then weights */
    float o[BLOCK_SUMS];                /* [query][head_dim] */
    float stage[STAGE_WIDTH * TILE];
} block;

/* One tile of a block: queries [first, n) see it; the last of them sees n_positions. */
typedef struct tile {
    int32_t position, first, n_positions;
    const char *k[TILE_BLOCKS], *v[TILE_BLOCKS]; /* of the blocks that hold visible positions */
} tile;

static int32_t min_i32(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* How many positions of the tile query j sees, 1 to 64. */
static int32_t tile_visible(const block *u, const tile *t, int32_t j) {
    return min_i32(u->n_visible[j] - t->position, TILE);
}

/* The next product takes this many of n queries: even parts. */
static int32_t next_queries(int32_t n) {
    int32_t parts = (n + MAX_QUERIES - 1) / MAX_QUERIES;
    return (n + parts - 1) / parts;
}

static void tile_init(tile *t, const block *u, int32_t position) {
    const mr_attention_args *a = u->args;
    t->position = position;
    t->first = 0;
    while (u->n_visible[t->first] <= position)
        t->first++;
    t->n_positions = min_i32(u->n_visible[u->n - 1] - position, TILE);
    size_t bytes = (size_t)a->head_dim * MR_KV_BLOCK * (u->is_half ? 2 : 4);
    for (int32_t i = 0; i * MR_KV_BLOCK < t->n_positions; i++) {
        int64_t index = (int64_t)u->kv_blocks[position / MR_KV_BLOCK + i] * a->n_kv_heads + u->kv_head;
        t->k[i] = (const char *)a->k_store + (size_t)index * bytes;
        t->v[i] = (const char *)a->v_store + (size_t)index * bytes;
    }
}

/* Scores of head elements [d, d + n), added to those before. */
static void add_scores(block *u, const tile *t, const product *kv, int32_t d, int32_t n) {
    static const float ONES[MAX_QUERIES] = {1, 1, 1, 1, 1, 1};
    int32_t vectors = (t->n_positions + 15) / 16, nq;
    product p = *kv;
    p.n[0] = n;
    p.n_segments = 1;
    p.b_stride = MR_KV_BLOCK;
    p.c_stride = TILE;
    p.factor = d ? ONES : NULL;
    for (int32_t j = t->first; j < u->n; j += nq) {
        nq = next_queries(u->n - j);
        for (int32_t i = 0; i < nq; i++)
            p.a[i] = u->q[j + i] + d;
        p.c = u->scores + j * TILE;
        product_run(&p, nq, vectors, u->is_half && !u->is_staged);
    }
}

static void tile_scores(block *u, const tile *t) {
    int32_t dim = u->args->head_dim, blocks = (t->n_positions + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
    product p;
    if (!u->is_staged) {
        for (int32_t i = 0; i < blocks; i++)
            p.b[0][i] = t->k[i];
        add_scores(u, t, &p, 0, dim);
        return;
    }
    for (int32_t d = 0; d < dim; d += STAGE_WIDTH) {
        int32_t n = min_i32(dim - d, STAGE_WIDTH) * MR_KV_BLOCK;
        for (int32_t i = 0; i < blocks; i++) {
            float *stage = u->stage + i * STAGE_WIDTH * MR_KV_BLOCK;
            const uint16_t *k = (const uint16_t *)t->k[i] + d * MR_KV_BLOCK;
            for (int32_t e = 0; e < n; e += 16)
                v16_store(stage + e, v16_load_f16(k + e));
            p.b[0][i] = stage;
        }
        add_scores(u, t, &p, d, n / MR_KV_BLOCK);
    }
}

/* Scores to weights for query j, which sees n positions; its maximum, lanes and factor follow. */
MR_INLINE void weigh(block *u, int32_t j, int32_t n, const bool is_full) {
    const v16 low = v16_set1(-INFINITY), zero = v16_set1(0.0f), scale = v16_set1(u->args->scale);
    float *scores = u->scores + j * TILE, old = u->m[j];
    v16 s[TILE / 16], max = v16_set1(old);
    v16m sees[TILE / 16];
    MR_UNROLL
    for (int i = 0; i < TILE / 16; i++) {
        s[i] = v16_mul(v16_load(scores + 16 * i), scale);
        if (!is_full) {
            int32_t lanes = n - 16 * i;
            sees[i] = v16m_first(lanes < 0 ? 0 : min_i32(lanes, 16));
            s[i] = v16_select(sees[i], s[i], low);
        }
        max = v16_max(s[i], max); /* not s where s is NaN */
    }
    float m = v16_reduce_max(max);
    MR_UNROLL
    for (int i = 0; i < TILE / 16; i++) {
        s[i] = v16_exp(v16_sub(s[i], v16_set1(m)));
        if (!is_full)
            s[i] = v16_select(sees[i], s[i], zero);
        v16_store(scores + 16 * i, s[i]);
    }
    float change = old - m, c = old == -INFINITY ? 0.0f : change == change ? mr_expf(change) : change;
    v16 sum = v16_add(v16_add(v16_add(s[0], s[1]), s[2]), s[3]);
    v16_store(u->l + j * 16, v16_fma(v16_load(u->l + j * 16), v16_set1(c), sum));
    u->m[j] = m;
    u->factor[j] = c;
}

static void tile_weights(block *u, const tile *t) {
    for (int32_t j = t->first; j < u->n; j++) {
        int32_t n = tile_visible(u, t, j);
        if (n == TILE)
            weigh(u, j, n, true);
        else
            weigh(u, j, n, false);
    }
}

/* Segments of positions [from, to) of the tile, head elements [d, d + 16 * vectors). */
static void value_segments(const block *u, const tile *t, int32_t from, int32_t to, int32_t d, int32_t vectors,
                           product *p) {
    p->b_stride = u->is_staged ? vectors * 16 : u->args->head_dim;
    p->n_segments = 0;
    for (int32_t s; from < to; from += p->n[s]) {
        s = p->n_segments++;
        int32_t block_idx = from / MR_KV_BLOCK, row = from % MR_KV_BLOCK;
        const char *b = (const char *)(u->stage + from * p->b_stride);
        p->n[s] = u->is_staged ? to - from : min_i32(to - from, MR_KV_BLOCK - row);
        if (!u->is_staged)
            b = t->v[block_idx] + (size_t)(row * u->args->head_dim + d) * (u->is_half ? 2 : 4);
        for (int32_t i = 0; i < vectors; i++)
            p->b[s][i] = b + i * 16 * (u->is_half && !u->is_staged ? 2 : 4);
    }
}

/* Values of head elements [d, d + 16 * vectors) for queries [j, j + nq). */
static void add_values(block *u, const tile *t, int32_t d, int32_t vectors, int32_t j, int32_t nq) {
    static const float ONE = 1.0f;
    bool is_half = u->is_half && !u->is_staged;
    int32_t dim = u->args->head_dim, common = tile_visible(u, t, j); /* queries see more and more */
    product p = {.c = u->o + j * dim + d, .c_stride = dim, .factor = u->factor + j};
    for (int32_t i = 0; i < nq; i++)
        p.a[i] = u->scores + (j + i) * TILE;
    value_segments(u, t, 0, common, d, vectors, &p);
    product_run(&p, nq, vectors, is_half);
    p.factor = &ONE;
    for (int32_t i = 1; i < nq; i++) {
        int32_t n = tile_visible(u, t, j + i);
        if (n == common)
            continue;
        p.a[0] = u->scores + (j + i) * TILE + common;
        p.c = u->o + (j + i) * dim + d;
        value_segments(u, t, common, n, d, vectors, &p);
        product_run(&p, 1, vectors, is_half);
    }
}

static void tile_values(block *u, const tile *t) {
    int32_t dim = u->args->head_dim, nq;
    for (int32_t d = 0; d < dim; d += STAGE_WIDTH) {
        int32_t n = min_i32(dim - d, STAGE_WIDTH);
        for (int32_t p = 0; p < t->n_positions && u->is_staged; p++) {
            const uint16_t *v = (const uint16_t *)t->v[p / MR_KV_BLOCK] + p % MR_KV_BLOCK * dim + d;
            for (int32_t e = 0; e < n; e += 16)
                v16_store(u->stage + p * n + e, v16_load_f16(v + e));
        }
        for (int32_t j = t->first; j < u->n; j += nq) {
            nq = next_queries(u->n - j);
            add_values(u, t, d, n / 16, j, nq);
        }
    }
}

/* The partition's state into the running one, for the queries that saw the partition. */
static void merge(block *u, int32_t first, bool is_first_partition) {
    int32_t dim = u->args->head_dim;
    for (int32_t j = first; j < u->n; j++) {
        float *l = u->l + j * 16, *all_l = u->all_l + j * 16, *o = u->o + j * dim, *out = u->out[j];
        if (is_first_partition) {
            u->all_m[j] = u->m[j];
            memcpy(all_l, l, 16 * sizeof *l);
            memcpy(out, o, (size_t)dim * sizeof *o);
            continue;
        }
        float m = u->m[j] > u->all_m[j] ? u->m[j] : u->all_m[j], x1 = u->all_m[j] - m, x2 = u->m[j] - m;
        v16 c1 = v16_exp(v16_set1(x1)), c2 = v16_exp(v16_set1(x2));
        v16_store(all_l, v16_fma(v16_load(all_l), c1, v16_mul(v16_load(l), c2)));
        for (int32_t d = 0; d < dim; d += 16)
            v16_store(out + d, v16_fma(v16_load(out + d), c1, v16_mul(v16_load(o + d), c2)));
        u->all_m[j] = m;
    }
}

static void block_run(block *u) {
    int32_t dim = u->args->head_dim, n_positions = u->n_visible[u->n - 1];
    for (int32_t start = 0; start < n_positions; start += PARTITION) {
        tile t;
        for (int32_t j = 0; j < u->n; j++)
            u->m[j] = -INFINITY;
        memset(u->l, 0, (size_t)u->n * 16 * sizeof *u->l);
        memset(u->o, 0, (size_t)u->n * (size_t)dim * sizeof *u->o);
        int32_t first = 0;
        while (u->n_visible[first] <= start)
            first++;
        for (int32_t p = start; p < min_i32(start + PARTITION, n_positions); p += TILE) {
            tile_init(&t, u, p);
            tile_scores(u, &t);
            tile_weights(u, &t);
            tile_values(u, &t);
        }
        merge(u, first, start == 0);
    }
    for (int32_t j = 0; j < u->n; j++) {
        v16 sum = v16_set1(v16_tree(v16_load(u->all_l + j * 16)));
        for (int32_t d = 0; d < dim; d += 16)
            v16_store(u->out[j] + d, v16_div(v16_load(u->out[j] + d), sum));
    }
}

/* Queries [first, first + n) of rows from row on: query i is head i % group of the KV head in row + i / group. */
static void block_init(block *u, int32_t row, int32_t first, int32_t n) {
    const mr_attention_args *a = u->args;
    int32_t group = a->n_heads / a->n_kv_heads;
    u->n = n;
    u->is_staged = u->is_half && n > STAGE_QUERIES;
    u->kv_blocks = a->block_table + (int64_t)a->row_seq[row] * a->table_stride;
    for (int32_t j = 0; j < n; j++) {
        int32_t r = row + (first + j) / group, head = u->kv_head * group + (first + j) % group;
        u->q[j] = (const float *)((const char *)a->q + (size_t)r * a->q_row_bytes) + (int64_t)head * a->head_dim;
        u->out[j] = (float *)((char *)a->out + (size_t)r * a->out_row_bytes) + (int64_t)head * a->head_dim;
        u->n_visible[j] = a->row_position[r] + 1;
    }
}

/* How many rows from row on share a sequence with positions that do not fall. */
static int32_t count_run(const mr_attention_args *a, int32_t row, int32_t row_last) {
    int32_t r = row + 1;
    while (r < row_last && a->row_seq[r] == a->row_seq[row] && a->row_position[r] >= a->row_position[r - 1])
        r++;
    return r - row;
}

MR_INLINE void attention_vec(const mr_attention_args *a, int32_t row_first, int32_t row_last, int32_t kv_head_first,
                             int32_t kv_head_last) {
    block u;
    u.args = a;
    u.is_half = a->kv_type == MR_TYPE_F16;
    int32_t rows, group = a->n_heads / a->n_kv_heads, most = min_i32(BLOCK_QUERIES, BLOCK_SUMS / a->head_dim);
    for (int32_t row = row_first; row < row_last; row += rows) {
        rows = count_run(a, row, row_last);
        for (u.kv_head = kv_head_first; u.kv_head < kv_head_last; u.kv_head++)
            for (int32_t i = 0; i < rows * group; i += u.n)
                block_init(&u, row, i, min_i32(rows * group - i, most)), block_run(&u);
    }
}

#endif
