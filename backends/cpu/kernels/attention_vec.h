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
    PART_QUERIES = 6,  /* more than MAX_QUERIES are cut into products of at most this */
};

/* Queries of one sequence and their state; 60 KiB. Each of n_kv KV heads has n queries, in order of position:
 * query g * n + j is the j-th of KV head kv_first + g. */
typedef struct block {
    const mr_attention_args *args;
    const int32_t *kv_blocks;
    int32_t kv_first, n_kv, n, n_positions; /* n_positions: that anybody sees */
    bool is_half;
    source from; /* of products */
    const float *q[BLOCK_QUERIES];
    float *out[BLOCK_QUERIES]; /* holds the sums of the merged partitions until the end */
    int32_t n_visible[BLOCK_QUERIES];
    float m[BLOCK_QUERIES], all_m[BLOCK_QUERIES];
    float factor[BLOCK_QUERIES + 16]; /* of the sums so far when a tile is added */
    _Alignas(64) float l[BLOCK_QUERIES * 16];
    float all_l[BLOCK_QUERIES * 16];
    float scores[BLOCK_QUERIES * TILE]; /* then weights */
    float o[BLOCK_SUMS];                /* [query][head_dim] */
    float stage[STAGE_WIDTH * TILE];
    ahead next;
} block;

/* One tile and KV head of a block: queries [first, last) see it, the last of them n_positions of it. */
typedef struct tile {
    int32_t position, first, last, n_positions;
    const char *k[TILE_BLOCKS], *v[TILE_BLOCKS]; /* those that hold visible positions */
    const char *next_k[TILE_BLOCKS];             /* of the tile that is next, n_next of them */
    int32_t n_next;
} tile;

static int32_t min_i32(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t blocks_of(int32_t n_positions) {
    return (n_positions + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
}

static int32_t clamp_lanes(int32_t n) {
    return n < 0 ? 0 : min_i32(n, 16);
}

static int32_t element_bytes(const block *u) {
    return u->is_half ? 2 : 4;
}

static int32_t block_bytes(const block *u) {
    return u->args->head_dim * MR_KV_BLOCK * element_bytes(u);
}

/* How many positions of the tile query j sees, 1 to 64. */
static int32_t tile_visible(const block *u, const tile *t, int32_t j) {
    return min_i32(u->n_visible[j] - t->position, TILE);
}

/* The next product takes this many of n queries: even parts. */
static int32_t next_queries(int32_t n) {
    int32_t parts = n <= MAX_QUERIES ? 1 : (n + PART_QUERIES - 1) / PART_QUERIES;
    return (n + parts - 1) / parts;
}

/* --- Memory --------------------------------------------------------------------------------------------------------- */

/* The blocks of keys or values that hold positions [position, position + n), n <= 64. */
static void find_blocks(const block *u, const void *store, int32_t kv_head, int32_t position, int32_t n,
                        const char *out[TILE_BLOCKS]) {
    for (int32_t i = 0; i < blocks_of(n); i++) {
        int64_t id = u->kv_blocks[position / MR_KV_BLOCK + i];
        out[i] = (const char *)store + (id * u->args->n_kv_heads + kv_head) * block_bytes(u);
    }
}

static void tile_init(tile *t, const block *u, int32_t position, int32_t g) {
    const mr_attention_args *a = u->args;
    bool is_last = g + 1 == u->n_kv; /* after the last KV head the first one of the next tile */
    int32_t next = is_last ? position + TILE : position, next_head = u->kv_first + (is_last ? 0 : g + 1);
    int32_t n_next = min_i32(u->n_positions - next, TILE);
    t->position = position;
    t->first = g * u->n;
    t->last = t->first + u->n;
    while (u->n_visible[t->first] <= position)
        t->first++;
    t->n_positions = min_i32(u->n_positions - position, TILE);
    t->n_next = n_next > 0 ? blocks_of(n_next) : 0;
    find_blocks(u, a->k_store, u->kv_first + g, position, t->n_positions, t->k);
    find_blocks(u, a->v_store, u->kv_first + g, position, t->n_positions, t->v);
    find_blocks(u, a->k_store, next_head, next, n_next, t->next_k);
}

/* The products that follow ask for these blocks. */
static void start_ahead(block *u, const char *const *blocks, int32_t n) {
    u->next.run_bytes = block_bytes(u);
    u->next.n_runs = n;
    u->next.run_idx = u->next.offset = 0;
    for (int32_t i = 0; i < n; i++)
        u->next.run[i] = blocks[i];
}

/* --- Scores --------------------------------------------------------------------------------------------------------- */

/* Scores of head elements [d, d + n), added to those before; k: vectors of 16 positions, each [n][16]. */
static void add_scores(block *u, const tile *t, const void *const k[TILE_BLOCKS], int32_t d, int32_t n) {
    int32_t step = n / MAX_SEGMENTS, bytes = u->from == SOURCE_F16 ? 2 : 4;
    product p = {.n_segments = MAX_SEGMENTS, .b_stride = MR_KV_BLOCK, .c_stride = TILE, .is_first = d == 0};
    for (int32_t s = 0; s < MAX_SEGMENTS; s++) {
        p.n[s] = step;
        for (int32_t i = 0; i < blocks_of(t->n_positions); i++)
            p.b[s][i] = (const char *)k[i] + s * step * MR_KV_BLOCK * bytes;
    }
    for (int32_t j = t->first, nq; j < t->last; j += nq) {
        nq = next_queries(t->last - j);
        for (int32_t i = 0; i < nq; i++)
            p.a[i] = u->q[j + i] + d;
        p.c = u->scores + j * TILE;
        product_run(&p, nq, blocks_of(t->n_positions), u->from, &u->next);
    }
}

/* Head elements [d, d + n) of the tile's keys as f32: of each block [n][16]. */
static void stage_keys(block *u, const tile *t, int32_t d, int32_t n, const void *out_k[TILE_BLOCKS]) {
    for (int32_t i = 0; i < blocks_of(t->n_positions); i++) {
        float *stage = u->stage + i * STAGE_WIDTH * MR_KV_BLOCK;
        const uint16_t *k = (const uint16_t *)t->k[i] + d * MR_KV_BLOCK;
        for (int32_t e = 0; e < n * MR_KV_BLOCK; e += 16)
            v16_store(stage + e, v16_load_f16(k + e));
        out_k[i] = stage;
    }
}

static void tile_scores(block *u, const tile *t) {
    int32_t dim = u->args->head_dim;
    const void *k[TILE_BLOCKS];
    start_ahead(u, t->v, blocks_of(t->n_positions));
    if (u->from != SOURCE_STAGE) {
        for (int32_t i = 0; i < blocks_of(t->n_positions); i++)
            k[i] = t->k[i];
        add_scores(u, t, k, 0, dim);
        return;
    }
    for (int32_t d = 0; d < dim; d += STAGE_WIDTH) {
        int32_t n = min_i32(dim - d, STAGE_WIDTH);
        stage_keys(u, t, d, n, k);
        add_scores(u, t, k, d, n);
    }
}

/* --- Weights -------------------------------------------------------------------------------------------------------- */

/* Scales the scores of query j, which sees n positions of the tile, and takes their maximum. */
MR_INLINE void scale_scores(block *u, int32_t j, int32_t n, const bool is_full) {
    v16 scale = v16_set1(u->args->scale), max = v16_set1(u->m[j]);
    float *scores = u->scores + j * TILE, old = u->m[j];
    MR_UNROLL
    for (int i = 0; i < TILE; i += 16) {
        v16 s = v16_mul(v16_load(scores + i), scale);
        if (!is_full)
            s = v16_select(v16m_first(clamp_lanes(n - i)), s, v16_set1(-INFINITY));
        v16_store(scores + i, s);
        max = v16_max(s, max); /* not s where s is NaN */
    }
    u->m[j] = v16_reduce_max(max);
    u->factor[j] = old == -INFINITY ? old : old - u->m[j];
}

/* Scores of query j to weights; its lanes follow. */
MR_INLINE void weigh(block *u, int32_t j, int32_t n, const bool is_full) {
    v16 w[TILE / 16], m = v16_set1(u->m[j]);
    float *scores = u->scores + j * TILE, *l = u->l + j * 16;
    MR_UNROLL
    for (int i = 0; i < TILE / 16; i++) {
        w[i] = v16_exp_declining(v16_sub(v16_load(scores + 16 * i), m));
        if (!is_full)
            w[i] = v16_select(v16m_first(clamp_lanes(n - 16 * i)), w[i], v16_set1(0.0f));
        v16_store(scores + 16 * i, w[i]);
    }
    v16 sum = v16_add(v16_add(v16_add(w[0], w[1]), w[2]), w[3]);
    v16_store(l, v16_fma(v16_load(l), v16_set1(u->factor[j]), sum));
}

/* In three sweeps over the queries, so that what runs side by side does not depend on each other. */
static void tile_weights(block *u, const tile *t) {
    int32_t full = t->first; /* the first query that sees the whole tile */
    while (full < t->last && tile_visible(u, t, full) < TILE)
        full++;
    for (int32_t j = t->first; j < full; j++)
        scale_scores(u, j, tile_visible(u, t, j), false);
    for (int32_t j = full; j < t->last; j++)
        scale_scores(u, j, TILE, true);
    for (int32_t j = t->first; j < t->last; j += 16)
        v16_store(u->factor + j, v16_exp_declining(v16_load(u->factor + j)));
    for (int32_t j = t->first; j < full; j++)
        weigh(u, j, tile_visible(u, t, j), false);
    for (int32_t j = full; j < t->last; j++)
        weigh(u, j, TILE, true);
}

/* --- Values --------------------------------------------------------------------------------------------------------- */

/* Head elements [d, d + n) of the tile's values as f32: [position][n]. */
static void stage_values(block *u, const tile *t, int32_t d, int32_t n) {
    int32_t dim = u->args->head_dim;
    for (int32_t p = 0; p < t->n_positions; p++) {
        const uint16_t *v = (const uint16_t *)t->v[p / MR_KV_BLOCK] + p % MR_KV_BLOCK * dim + d;
        for (int32_t e = 0; e < n; e += 16)
            v16_store(u->stage + p * n + e, v16_load_f16(v + e));
    }
}

/* Head element d of the value at position i of the tile; of the stage, if it holds n elements from d on. */
static const char *value_at(const block *u, const tile *t, int32_t i, int32_t d, int32_t n) {
    if (u->from == SOURCE_STAGE)
        return (const char *)(u->stage + i * n);
    return t->v[i / MR_KV_BLOCK] + (i % MR_KV_BLOCK * u->args->head_dim + d) * element_bytes(u);
}

/* p walks positions [from, to) of the tile, head elements [d, d + n). */
static void value_segments(const block *u, const tile *t, int32_t from, int32_t to, int32_t d, int32_t n, product *p) {
    int32_t vector_bytes = 16 * (u->from == SOURCE_F16 ? 2 : 4), s = 0;
    p->b_stride = u->from == SOURCE_STAGE ? n : u->args->head_dim;
    for (; from < to; from += p->n[s++]) {
        p->n[s] = min_i32(to - from, MR_KV_BLOCK - from % MR_KV_BLOCK);
        for (int32_t i = 0; i < n / 16; i++)
            p->b[s][i] = value_at(u, t, from, d, n) + i * vector_bytes;
    }
    p->n_segments = s;
}

/* Values of head elements [d, d + n) for queries [j, j + nq): those positions together that all of them see. */
static void add_values(block *u, const tile *t, int32_t d, int32_t n, int32_t j, int32_t nq) {
    int32_t dim = u->args->head_dim, common = tile_visible(u, t, j); /* queries see more and more */
    product p = {.c = u->o + j * dim + d, .c_stride = dim, .factor = u->factor + j};
    for (int32_t i = 0; i < nq; i++)
        p.a[i] = u->scores + (j + i) * TILE;
    value_segments(u, t, 0, common, d, n, &p);
    product_run(&p, nq, n / 16, u->from, &u->next);
    p.factor = NULL;
    for (int32_t i = j + 1; i < j + nq; i++) {
        int32_t visible = tile_visible(u, t, i);
        if (visible == common)
            continue;
        p.a[0] = u->scores + i * TILE + common;
        p.c = u->o + i * dim + d;
        value_segments(u, t, common, visible, d, n, &p);
        product_run(&p, 1, n / 16, u->from, &u->next);
    }
}

static void tile_values(block *u, const tile *t) {
    int32_t dim = u->args->head_dim, parts = (dim + STAGE_WIDTH - 1) / STAGE_WIDTH;
    start_ahead(u, t->next_k, t->n_next);
    for (int32_t d = 0, n; d < dim; d += n, parts--) {
        n = ((dim - d) / 16 + parts - 1) / parts * 16; /* even parts */
        if (u->from == SOURCE_STAGE)
            stage_values(u, t, d, n);
        for (int32_t j = t->first, nq; j < t->last; j += nq) {
            nq = next_queries(t->last - j);
            add_values(u, t, d, n, j, nq);
        }
    }
}

/* --- Partitions and blocks ------------------------------------------------------------------------------------------ */

/* The partition's state of query j into the running one. */
static void merge(block *u, int32_t j, bool is_first_partition) {
    int32_t dim = u->args->head_dim;
    float *l = u->l + j * 16, *all_l = u->all_l + j * 16, *o = u->o + j * dim, *out = u->out[j];
    if (is_first_partition) {
        u->all_m[j] = u->m[j];
        memcpy(all_l, l, 16 * sizeof *l);
        memcpy(out, o, (size_t)dim * sizeof *o);
        return;
    }
    float m = u->m[j] > u->all_m[j] ? u->m[j] : u->all_m[j];
    v16 c1 = v16_exp(v16_set1(u->all_m[j] - m)), c2 = v16_exp(v16_set1(u->m[j] - m));
    v16_store(all_l, v16_fma(v16_load(all_l), c1, v16_mul(v16_load(l), c2)));
    for (int32_t d = 0; d < dim; d += 16)
        v16_store(out + d, v16_fma(v16_load(out + d), c1, v16_mul(v16_load(o + d), c2)));
    u->all_m[j] = m;
}

static void run_partition(block *u, int32_t start) {
    int32_t n_queries = u->n * u->n_kv;
    for (int32_t j = 0; j < n_queries; j++)
        u->m[j] = -INFINITY;
    memset(u->l, 0, (size_t)n_queries * 16 * sizeof *u->l);
    memset(u->o, 0, (size_t)(n_queries * u->args->head_dim) * sizeof *u->o);
    for (int32_t p = start; p < min_i32(start + PARTITION, u->n_positions); p += TILE)
        for (int32_t g = 0; g < u->n_kv; g++) {
            tile t;
            tile_init(&t, u, p, g);
            tile_scores(u, &t);
            tile_weights(u, &t);
            tile_values(u, &t);
        }
    for (int32_t j = 0; j < n_queries; j++)
        if (u->n_visible[j] > start)
            merge(u, j, start == 0);
}

/* Queries [first, first + n) of each KV head; query i is head i % group of it, of row + i / group. */
static void block_init(block *u, int32_t row, int32_t first, int32_t n, int32_t kv_first, int32_t n_kv) {
    const mr_attention_args *a = u->args;
    int32_t group = a->n_heads / a->n_kv_heads;
    u->n = n;
    u->kv_first = kv_first;
    u->n_kv = n_kv;
    u->from = !u->is_half ? SOURCE_F32 : n > MAX_QUERIES ? SOURCE_STAGE : SOURCE_F16;
    u->kv_blocks = a->block_table + (int64_t)a->row_seq[row] * a->table_stride;
    for (int32_t i = 0; i < n * n_kv; i++) {
        int32_t j = first + i % n, r = row + j / group, head = (kv_first + i / n) * group + j % group;
        u->q[i] = (const float *)((const char *)a->q + (size_t)r * a->q_row_bytes) + (int64_t)head * a->head_dim;
        u->out[i] = (float *)((char *)a->out + (size_t)r * a->out_row_bytes) + (int64_t)head * a->head_dim;
        u->n_visible[i] = a->row_position[r] + 1;
    }
    u->n_positions = u->n_visible[n - 1];
    memset(u->factor, 0, sizeof u->factor); /* tile_weights runs over the end of a KV head */
}

static void block_run(block *u) {
    int32_t dim = u->args->head_dim;
    for (int32_t start = 0; start < u->n_positions; start += PARTITION)
        run_partition(u, start);
    for (int32_t j = 0; j < u->n * u->n_kv; j++) {
        v16 sum = v16_set1(v16_tree(v16_load(u->all_l + j * 16)));
        for (int32_t d = 0; d < dim; d += 16)
            v16_store(u->out[j] + d, v16_div(v16_load(u->out[j] + d), sum));
    }
}

/* How many rows from row on share a sequence with positions that do not fall. */
static int32_t count_run(const mr_attention_args *a, int32_t row, int32_t row_last) {
    int32_t r = row + 1;
    while (r < row_last && a->row_seq[r] == a->row_seq[row] && a->row_position[r] >= a->row_position[r - 1])
        r++;
    return r - row;
}

/* All KV heads of a block together where they fit: then memory is read in longer runs. */
MR_INLINE void attention_vec(const mr_attention_args *a, int32_t row_first, int32_t row_last, int32_t kv_head_first,
                             int32_t kv_head_last) {
    block u;
    u.args = a;
    u.is_half = a->kv_type == MR_TYPE_F16;
    int32_t group = a->n_heads / a->n_kv_heads, most = min_i32(BLOCK_QUERIES, BLOCK_SUMS / a->head_dim);
    for (int32_t row = row_first, rows; row < row_last; row += rows) {
        rows = count_run(a, row, row_last);
        int32_t n = rows * group, at_once = n <= most ? most / n : 1;
        for (int32_t kv = kv_head_first, n_kv; kv < kv_head_last; kv += n_kv) {
            n_kv = min_i32(kv_head_last - kv, at_once);
            for (int32_t i = 0; i < n; i += u.n) {
                block_init(&u, row, i, min_i32(n - i, most), kv, n_kv);
                block_run(&u);
            }
        }
    }
}

#endif
