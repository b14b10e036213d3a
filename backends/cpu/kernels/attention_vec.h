/* backends/cpu/kernels/attention_vec.h - rule T on 16 lanes, with the same bits as attention_scalar.c.
 * Layout of the store: see kernels.h.
 *
 * A block of queries (rows of one sequence in position order, times the heads that share a KV head) is computed tile by
 * tile, 64 positions each: scores (lanes are positions), then weights, then values (lanes are head elements). With few
 * queries, f16 is converted in registers, once for all queries of a product. With more queries, and always for q8_0, a
 * part of the tile is converted once for the whole block, into a buffer of 16 KiB: the stage. The order of accumulation
 * is that of rule T for each query, whatever the block. A tile may hold positions that a query does not see. Their
 * scores are computed and then replaced. Their values are never multiplied, because 0 * infinity is not 0.
 * Include after vec_avx512.h or the like with PRODUCT_SHAPES defined. Threads: pure functions. Stack: see block. */
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
    PARTITION = MR_ATTENTION_PARTITION,
    TILE_BLOCKS = TILE / MR_KV_BLOCK,
    BLOCK_QUERIES = MR_ATTENTION_QUERIES,
    BLOCK_SUMS = MR_ATTENTION_SUMS, /* floats: 48 queries of 128 elements, 24 of 256, 12 of 512 */
    STAGE_WIDTH = 64,               /* head elements staged at once */
    PART_QUERIES = 6,               /* most queries of a product from the stage, or where MAX_QUERIES do not suffice */
};

/* Queries of one sequence and their state; 60 KiB. Each of n_kv KV heads has n queries, in order of position: query
 * g * n + j is query j of KV head kv_first + g. */
typedef struct block {
    const mr_attention_args *args;
    const int32_t *kv_blocks;
    int32_t kv_first, n_kv, n, n_positions; /* n_positions: 1 + the last position that any query of the block sees */
    int32_t head_first, group;              /* query heads of each KV head: group of them, from this one on */
    int32_t k_head_bytes, v_head_bytes;     /* of one KV head in a block of the store */
    source from;                            /* of products */
    const float *q[BLOCK_QUERIES];
    float *out[BLOCK_QUERIES];                         /* holds the sums of the merged partitions until the end */
    int32_t first[BLOCK_QUERIES], last[BLOCK_QUERIES]; /* the query sees positions [first, last) */
    float m[BLOCK_QUERIES], sink[BLOCK_QUERIES], scale[BLOCK_QUERIES]; /* scale: of scores */
    float factor[BLOCK_QUERIES + 16]; /* the present sums are multiplied by it when a tile is added */
    float *all_m, *all_l;             /* of the merged partitions: in the chain, or own_m and own_l */
    float own_m[BLOCK_QUERIES], own_l[BLOCK_QUERIES * 16];
    _Alignas(64) float l[BLOCK_QUERIES * 16];
    float scores[BLOCK_QUERIES * TILE]; /* of the tile; later its weights */
    float o[BLOCK_SUMS];                /* [query][v_dim] */
    float stage[STAGE_WIDTH * TILE];
    ahead next;
} block;

/* One tile and KV head of a block. Queries [first, last) see at least one position of the tile. */
typedef struct tile {
    int32_t position, first, last, n_positions; /* n_positions: how many positions of the tile exist */
    const char *k[TILE_BLOCKS], *v[TILE_BLOCKS];
    const char *next_k[TILE_BLOCKS]; /* [n_next] keys of the next tile, to prefetch */
    int32_t n_next;
} tile;

static int32_t blocks_of(int32_t n_positions) {
    return (n_positions + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
}

static int32_t clamp_lanes(int32_t n) {
    return n < 0 ? 0 : mr_min_i32(n, 16);
}

/* Query j sees positions [hidden, visible) of the tile. */
static int32_t tile_hidden(const block *u, const tile *t, int32_t j) {
    return u->first[j] > t->position ? u->first[j] - t->position : 0;
}
static int32_t tile_visible(const block *u, const tile *t, int32_t j) {
    return mr_min_i32(u->last[j] - t->position, TILE);
}
static bool sees_all(const block *u, const tile *t, int32_t j) {
    return u->first[j] <= t->position && u->last[j] >= t->position + TILE;
}

/* How many of the remaining n queries the next product takes, so that all products have nearly the same number. */
static int32_t next_queries(const block *u, int32_t n) {
    int32_t parts =
        n <= (u->from == SOURCE_STAGE ? PART_QUERIES : MAX_QUERIES) ? 1 : (n + PART_QUERIES - 1) / PART_QUERIES;
    return (n + parts - 1) / parts;
}

/* --- Memory ------------------------------------------------------------------------------------------------------ */

/* Finds the blocks of keys that hold positions [position, position + n), n <= 64. */
static void find_keys(const block *u, int32_t kv_head, int32_t position, int32_t n, const char *out[TILE_BLOCKS]) {
    const char *head = (const char *)u->args->k_store + (int64_t)kv_head * u->k_head_bytes;
    for (int32_t i = 0; i < blocks_of(n); i++)
        out[i] = head + u->kv_blocks[position / MR_KV_BLOCK + i] * (int64_t)u->args->k_block_bytes;
}
static void find_values(const block *u, int32_t kv_head, int32_t position, int32_t n, const char *out[TILE_BLOCKS]) {
    const char *head = (const char *)u->args->v_store + (int64_t)kv_head * u->v_head_bytes;
    for (int32_t i = 0; i < blocks_of(n); i++)
        out[i] = head + u->kv_blocks[position / MR_KV_BLOCK + i] * (int64_t)u->args->v_block_bytes;
}

static void tile_init(tile *t, const block *u, int32_t position, int32_t g) {
    bool is_last = g + 1 == u->n_kv; /* the first KV head of the next tile follows */
    int32_t next = is_last ? position + TILE : position, next_head = u->kv_first + (is_last ? 0 : g + 1);
    int32_t n_next = mr_min_i32(u->n_positions - next, TILE);
    t->position = position;
    t->first = g * u->n;
    t->last = t->first + u->n;
    while (u->last[t->first] <= position) /* the last query sees the last position */
        t->first++;
    while (t->last > t->first && u->first[t->last - 1] >= position + TILE)
        t->last--;
    t->n_positions = mr_min_i32(u->n_positions - position, TILE);
    t->n_next = n_next > 0 ? blocks_of(n_next) : 0;
    find_keys(u, u->kv_first + g, position, t->n_positions, t->k);
    find_values(u, u->kv_first + g, position, t->n_positions, t->v);
    find_keys(u, next_head, next, n_next, t->next_k);
}

/* Lets the products that follow prefetch these blocks, bytes of each. */
static void start_ahead(block *u, const char *const *blocks, int32_t n, int32_t bytes) {
    u->next.run_bytes = bytes;
    u->next.n_runs = n;
    u->next.run_idx = u->next.offset = 0;
    for (int32_t i = 0; i < n; i++)
        u->next.run[i] = blocks[i];
}

/* --- Scores ------------------------------------------------------------------------------------------------------ */

/* Adds the products of head elements [d, d + n) to the scores; d = 0 starts the scores. k: for each block of 16
 * positions, keys [n][16]. */
static void add_scores(block *u, const tile *t, const void *const k[TILE_BLOCKS], int32_t d, int32_t n) {
    int32_t step = n / MAX_SEGMENTS, bytes = u->from == SOURCE_F16 ? 2 : 4;
    product p = {.n_segments = MAX_SEGMENTS, .b_stride = MR_KV_BLOCK, .c_stride = TILE, .is_first = d == 0};
    for (int32_t s = 0; s < MAX_SEGMENTS; s++) {
        p.n[s] = step;
        for (int32_t i = 0; i < blocks_of(t->n_positions); i++)
            p.b[s][i] = (const char *)k[i] + s * step * MR_KV_BLOCK * bytes;
    }
    for (int32_t j = t->first, nq; j < t->last; j += nq) {
        nq = next_queries(u, t->last - j);
        for (int32_t i = 0; i < nq; i++)
            p.a[i] = u->q[j + i] + d;
        p.c = u->scores + j * TILE;
        product_run(&p, nq, blocks_of(t->n_positions), u->from, &u->next);
    }
}

/* The scales of a Q8_0 block of keys or values, dim elements for each position. */
static const uint16_t *scales_of(const char *kv, int32_t dim) {
    return (const uint16_t *)(const void *)(kv + dim * MR_KV_BLOCK);
}

/* Converts head elements [d, d + n) of the tile's keys to f32. out_k: for each block, keys [n][16] in the stage. */
static void stage_keys(block *u, const tile *t, int32_t d, int32_t n, const void *out_k[TILE_BLOCKS]) {
    for (int32_t i = 0; i < blocks_of(t->n_positions); i++) {
        float *stage = u->stage + i * STAGE_WIDTH * MR_KV_BLOCK;
        out_k[i] = stage;
        if (u->args->kv_type == MR_TYPE_F16) {
            const uint16_t *k = (const uint16_t *)t->k[i] + d * MR_KV_BLOCK;
            for (int32_t e = 0; e < n * MR_KV_BLOCK; e += 16)
                v16_store(stage + e, v16_load_f16(k + e));
            continue;
        }
        const int8_t *k = (const int8_t *)t->k[i] + d * MR_KV_BLOCK;
        const uint16_t *scales = scales_of(t->k[i], u->args->k_dim) + d / 32 * MR_KV_BLOCK;
        for (int32_t e = 0; e < n * MR_KV_BLOCK; e += 32 * 16, scales += MR_KV_BLOCK) {
            v16 scale = v16_load_f16(scales);
            MR_UNROLL
            for (int32_t j = e; j < e + 32 * 16; j += 16)
                v16_store(stage + j, v16_mul(v16_load_i8(k + j), scale));
        }
    }
}

static void tile_scores(block *u, const tile *t) {
    int32_t dim = u->args->k_dim;
    const void *k[TILE_BLOCKS] = {0};
    start_ahead(u, t->v, blocks_of(t->n_positions), u->v_head_bytes);
    if (u->from != SOURCE_STAGE) {
        for (int32_t i = 0; i < blocks_of(t->n_positions); i++)
            k[i] = t->k[i];
        add_scores(u, t, k, 0, dim);
        return;
    }
    for (int32_t d = 0; d < dim; d += STAGE_WIDTH) {
        int32_t n = mr_min_i32(dim - d, STAGE_WIDTH);
        stage_keys(u, t, d, n, k);
        add_scores(u, t, k, d, n);
    }
}

/* --- Weights ----------------------------------------------------------------------------------------------------- */

/* x in lanes [first, last), other in the other lanes. */
MR_INLINE v16 select_range(v16 x, int32_t first, int32_t last, v16 other) {
    x = v16_select(v16m_first(clamp_lanes(last)), x, other);
    return v16_select(v16m_first(clamp_lanes(first)), other, x);
}

/* Scales the scores of query j, which sees positions [first, last) of the tile, and takes their maximum. */
MR_INLINE void scale_scores(block *u, int32_t j, int32_t first, int32_t last, const bool is_full, const bool has_cap) {
    v16 scale = v16_set1(u->scale[j]), max = v16_set1(u->m[j]);
    v16 cap = v16_set1(u->args->soft_cap), inverse = v16_set1(1.0f / u->args->soft_cap);
    float *scores = u->scores + j * TILE, old = u->m[j];
    MR_UNROLL
    for (int i = 0; i < TILE; i += 16) {
        v16 s = v16_mul(v16_load(scores + i), scale);
        if (has_cap)
            s = v16_mul(cap, v16_tanh(v16_mul(s, inverse)));
        if (!is_full)
            s = select_range(s, first - i, last - i, v16_set1(-INFINITY));
        v16_store(scores + i, s);
        max = v16_max(s, max); /* a NaN in s leaves max as it is */
    }
    u->m[j] = v16_reduce_max(max);
    u->factor[j] = old == -INFINITY ? old : old - u->m[j];
}

/* Turns the scores of query j into weights, and adds the weights to the lanes l. */
MR_INLINE void weigh(block *u, int32_t j, int32_t first, int32_t last, const bool is_full) {
    v16 w[TILE / 16], m = v16_set1(u->m[j]);
    float *scores = u->scores + j * TILE, *l = u->l + j * 16;
    MR_UNROLL
    for (int i = 0; i < TILE / 16; i++) {
        w[i] = v16_exp_declining(v16_sub(v16_load(scores + 16 * i), m));
        if (!is_full)
            w[i] = select_range(w[i], first - 16 * i, last - 16 * i, v16_set1(0.0f));
        v16_store(scores + 16 * i, w[i]);
    }
    v16 sum = v16_add(v16_add(v16_add(w[0], w[1]), w[2]), w[3]);
    v16_store(l, v16_fma(v16_load(l), v16_set1(u->factor[j]), sum));
}

/* In three loops over the queries: in each loop, the work on one query is independent of the others, so it overlaps. */
static void tile_weights(block *u, const tile *t) {
    bool has_cap = u->args->soft_cap != 0.0f;
    for (int32_t j = t->first; j < t->last; j++) {
        int32_t hidden = tile_hidden(u, t, j), visible = tile_visible(u, t, j);
        if (has_cap)
            scale_scores(u, j, hidden, visible, false, true);
        else if (sees_all(u, t, j))
            scale_scores(u, j, 0, TILE, true, false);
        else
            scale_scores(u, j, hidden, visible, false, false);
    }
    for (int32_t j = t->first; j < t->last; j += 16)
        v16_store(u->factor + j, v16_exp_declining(v16_load(u->factor + j)));
    for (int32_t j = t->first; j < t->last; j++) {
        if (sees_all(u, t, j))
            weigh(u, j, 0, TILE, true);
        else
            weigh(u, j, tile_hidden(u, t, j), tile_visible(u, t, j), false);
    }
}

/* --- Values ------------------------------------------------------------------------------------------------------ */

/* Converts n elements of a Q8_0 value. The first one is number d of its block of 32, and scales[0] is that block's. */
MR_INLINE void stage_value_q8(const int8_t *v, const float *scales, int32_t d, const int32_t n, float *stage) {
    MR_UNROLL
    for (int32_t e = 0; e < n; e += 16)
        v16_store(stage + e, v16_mul(v16_load_i8(v + e), v16_set1(scales[(uint32_t)(d + e) / 32])));
}

/* Converts head elements [d, d + n) of n_rows values of a Q8_0 block. */
static void stage_values_q8(const block *u, const char *stored, int32_t n_rows, int32_t d, int32_t n, float *stage) {
    int32_t dim = u->args->v_dim, n_scales = dim / 32; /* of a value */
    const int8_t *v = (const int8_t *)stored + d;
    float scales[MR_ATTENTION_DIM / 32 * MR_KV_BLOCK];
    for (int32_t i = 0; i < n_scales; i++)
        v16_store(scales + 16 * i, v16_load_f16(scales_of(stored, dim) + 16 * i));
    const float *of_row = scales + d / 32;
    for (int32_t row = 0; row < n_rows; row++, v += dim, of_row += n_scales, stage += n)
        if (n == STAGE_WIDTH && d % 32 == 0) /* unrolled */
            stage_value_q8(v, of_row, 0, STAGE_WIDTH, stage);
        else
            stage_value_q8(v, of_row, d % 32, n, stage);
}

/* Converts head elements [d, d + n) of the tile's values to f32 in the stage: [position][n]. */
static void stage_values(block *u, const tile *t, int32_t d, int32_t n) {
    int32_t dim = u->args->v_dim;
    for (int32_t p = 0; p < t->n_positions; p += MR_KV_BLOCK) {
        int32_t n_rows = mr_min_i32(t->n_positions - p, MR_KV_BLOCK);
        const char *stored = t->v[p / MR_KV_BLOCK];
        float *stage = u->stage + p * n;
        if (u->args->kv_type != MR_TYPE_F16) {
            stage_values_q8(u, stored, n_rows, d, n, stage);
            continue;
        }
        const uint16_t *v = (const uint16_t *)stored + d;
        for (int32_t row = 0; row < n_rows; row++, v += dim, stage += n)
            for (int32_t e = 0; e < n; e += 16)
                v16_store(stage + e, v16_load_f16(v + e));
    }
}

/* Address of head element d of the value at position i of the tile. If products read the stage, it holds n elements of
 * each value, from d on. */
static const char *value_at(const block *u, const tile *t, int32_t i, int32_t d, int32_t n) {
    if (u->from == SOURCE_STAGE)
        return (const char *)(u->stage + i * n);
    return t->v[i / MR_KV_BLOCK] + (i % MR_KV_BLOCK * u->args->v_dim + d) * (u->from == SOURCE_F16 ? 2 : 4);
}

/* Gives p the segments of positions [from, to) of the tile, for head elements [d, d + n). */
static void value_segments(const block *u, const tile *t, int32_t from, int32_t to, int32_t d, int32_t n, product *p) {
    int32_t vector_bytes = 16 * (u->from == SOURCE_F16 ? 2 : 4), s = 0;
    p->b_stride = u->from == SOURCE_STAGE ? n : u->args->v_dim;
    for (; from < to; from += p->n[s++]) {
        p->n[s] = mr_min_i32(to - from, MR_KV_BLOCK - from % MR_KV_BLOCK);
        for (int32_t i = 0; i < n / 16; i++)
            p->b[s][i] = value_at(u, t, from, d, n) + i * vector_bytes;
    }
    p->n_segments = s;
}

/* Adds the weighted values of positions [from, to) for nq queries from j on. has_factor: the sums are multiplied by the
 * factor of their query first. */
static void add_range(block *u, const tile *t, int32_t d, int32_t n, int32_t j, int32_t nq, int32_t from, int32_t to,
                      bool has_factor) {
    int32_t dim = u->args->v_dim;
    product p = {.c = u->o + j * dim + d, .c_stride = dim, .factor = has_factor ? u->factor + j : NULL};
    for (int32_t i = 0; i < nq; i++)
        p.a[i] = u->scores + (j + i) * TILE + from;
    value_segments(u, t, from, to, d, n, &p);
    product_run(&p, nq, n / 16, u->from, &u->next);
}

/* Adds the weighted values of head elements [d, d + n) for queries [j, j + nq). The positions that all of these queries
 * see are computed in one product; the remaining positions, and tiles in which a window begins, query by query. */
static void add_values(block *u, const tile *t, int32_t d, int32_t n, int32_t j, int32_t nq) {
    int32_t common = tile_visible(u, t, j); /* later queries see at least as many positions */
    bool is_together = tile_hidden(u, t, j + nq - 1) == 0;
    if (is_together)
        add_range(u, t, d, n, j, nq, 0, common, true);
    for (int32_t i = j; i < j + nq; i++) {
        int32_t visible = tile_visible(u, t, i);
        if (!is_together)
            add_range(u, t, d, n, i, 1, tile_hidden(u, t, i), visible, true);
        else if (visible > common)
            add_range(u, t, d, n, i, 1, common, visible, false);
    }
}

static void tile_values(block *u, const tile *t) {
    int32_t dim = u->args->v_dim, parts = (dim + STAGE_WIDTH - 1) / STAGE_WIDTH;
    start_ahead(u, t->next_k, t->n_next, u->k_head_bytes);
    for (int32_t d = 0, n; d < dim; d += n, parts--) {
        n = ((dim - d) / 16 + parts - 1) / parts * 16; /* even parts */
        if (u->from == SOURCE_STAGE)
            stage_values(u, t, d, n);
        for (int32_t j = t->first, nq; j < t->last; j += nq) {
            nq = next_queries(u, t->last - j);
            add_values(u, t, d, n, j, nq);
        }
    }
}

/* --- Partitions and blocks --------------------------------------------------------------------------------------- */

/* Merges the partition's state of query j into the state of the merged partitions. */
static void merge(block *u, int32_t j, bool is_first_partition) {
    int32_t dim = u->args->v_dim;
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

/* Computes the result of query j, with the sink of its head. */
static void finish(block *u, int32_t j) {
    const mr_attention_args *a = u->args;
    v16 sum = v16_set1(v16_tree(v16_load(u->all_l + j * 16))), c = v16_set1(1.0f);
    if (a->sinks) {
        float sink = u->sink[j], m = sink > u->all_m[j] ? sink : u->all_m[j];
        c = v16_exp(v16_set1(u->all_m[j] - m));
        sum = v16_fma(sum, c, v16_exp(v16_set1(sink - m)));
    }
    for (int32_t d = 0; d < a->v_dim; d += 16)
        v16_store(u->out[j] + d, v16_div(v16_mul(v16_load(u->out[j] + d), c), sum));
}

static void run_partition(block *u, int32_t start) {
    int32_t n_queries = u->n * u->n_kv, tiles_first = u->first[0] / TILE * TILE;
    for (int32_t j = 0; j < n_queries; j++)
        u->m[j] = -INFINITY;
    memset(u->l, 0, (size_t)n_queries * 16 * sizeof *u->l);
    memset(u->o, 0, (size_t)(n_queries * u->args->v_dim) * sizeof *u->o);
    int32_t p = tiles_first > start ? tiles_first : start;
    for (; p < mr_min_i32(start + PARTITION, u->n_positions); p += TILE)
        for (int32_t g = 0; g < u->n_kv; g++) {
            tile t;
            tile_init(&t, u, p, g);
            if (t.first >= t.last) /* no query sees the tile: it lies between the windows of two queries */
                continue;
            tile_scores(u, &t);
            tile_weights(u, &t);
            tile_values(u, &t);
        }
}

/* Merges the partition at start. Queries that see no later position get their result. */
static void merge_partition(block *u, int32_t start) {
    for (int32_t j = 0; j < u->n * u->n_kv; j++) {
        if (u->last[j] <= start || u->first[j] >= start + PARTITION)
            continue;
        merge(u, j, u->first[j] >= start);
        if (u->last[j] <= start + PARTITION)
            finish(u, j);
    }
}

/* Sets up the block for queries [first, first + n) of each KV head. Query i of a KV head is head head_first + i % group
 * of the KV head and belongs to row + i / group. */
static void block_init(block *u, int32_t row, int32_t first, int32_t n, int32_t kv_first, int32_t n_kv) {
    const mr_attention_args *a = u->args;
    int32_t group = u->group, all = a->n_heads / a->n_kv_heads;
    u->n = n;
    u->kv_first = kv_first;
    u->n_kv = n_kv;
    u->from = a->kv_type == MR_TYPE_F32                       ? SOURCE_F32
              : a->kv_type == MR_TYPE_F16 && n <= MAX_QUERIES ? SOURCE_F16
                                                              : SOURCE_STAGE;
    u->kv_blocks = a->block_table + (int64_t)a->row_seq[row] * a->table_stride;
    for (int32_t i = 0; i < n * n_kv; i++) {
        int32_t j = first + i % n, r = row + j / group, head = (kv_first + i / n) * all + u->head_first + j % group;
        u->q[i] = (const float *)((const char *)a->q + (size_t)r * a->q_row_bytes) + (int64_t)head * a->k_dim;
        u->out[i] = (float *)((char *)a->out + (size_t)r * a->out_row_bytes) + (int64_t)head * a->v_dim;
        u->sink[i] = a->sinks ? a->sinks[head] : 0.0f;
        u->scale[i] = mr_attention_scale(a, r);
        u->first[i] = mr_attention_first(a, r);
        u->last[i] = a->row_position[r] + 1;
    }
    u->n_positions = u->last[n - 1];
    memset(u->factor, 0, sizeof u->factor); /* tile_weights also computes lanes behind the last query of a KV head */
}

/* Computes all partitions. */
static void block_run(block *u) {
    u->all_m = u->own_m;
    u->all_l = u->own_l;
    for (int32_t start = u->first[0] / PARTITION * PARTITION; start < u->n_positions; start += PARTITION) {
        run_partition(u, start);
        merge_partition(u, start);
    }
}

/* Computes one partition of a chain, and merges it when its turn comes. */
static void block_run_part(block *u, const mr_attention_part *part) {
    int32_t start = part->partition * PARTITION;
    u->all_m = part->chain->m;
    u->all_l = part->chain->l;
    run_partition(u, start);
    mr_attention_chain_wait(part->chain, part->partition);
    merge_partition(u, start);
    mr_attention_chain_pass(part->chain, part->partition);
}

/* The number of rows, from `row` on, that belong to one sequence and whose positions do not decrease. */
static int32_t count_run(const mr_attention_args *a, int32_t row, int32_t row_last) {
    int32_t r = row + 1;
    while (r < row_last && a->row_seq[r] == a->row_seq[row] && a->row_position[r] >= a->row_position[r - 1])
        r++;
    return r - row;
}

/* A block takes as many KV heads as fit, because memory is then read in longer runs. */
MR_INLINE void attention_vec(const mr_attention_args *a, const mr_attention_part *part) {
    block u;
    u.args = a;
    u.k_head_bytes = (int32_t)mr_kv_head_bytes(a->kv_type, a->k_dim);
    u.v_head_bytes = (int32_t)mr_kv_head_bytes(a->kv_type, a->v_dim);
    int32_t all = a->n_heads / a->n_kv_heads, group = mr_min_i32(part->head_last - part->head_first, all);
    int32_t kv_first = part->head_first / all, kv_last = kv_first + (part->head_last - part->head_first) / group;
    int32_t most = mr_attention_most(a->v_dim);
    u.head_first = part->head_first % all;
    u.group = group;
    if (part->chain) {
        block_init(&u, part->row_first, 0, (part->row_last - part->row_first) * group, kv_first, kv_last - kv_first);
        block_run_part(&u, part);
        return;
    }
    for (int32_t row = part->row_first, rows; row < part->row_last; row += rows) {
        rows = count_run(a, row, part->row_last);
        int32_t n = rows * group, at_once = n <= most ? most / n : 1;
        for (int32_t kv = kv_first, n_kv; kv < kv_last; kv += n_kv) {
            n_kv = mr_min_i32(kv_last - kv, at_once);
            for (int32_t i = 0; i < n; i += u.n) {
                block_init(&u, row, i, mr_min_i32(n - i, most), kv, n_kv);
                block_run(&u);
            }
        }
    }
}

#endif
