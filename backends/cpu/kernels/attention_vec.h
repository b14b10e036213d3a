/* backends/cpu/kernels/attention_vec.h - rules T and T8 on 16 lanes, with the same bits as attention_scalar.c.
 * Layout of the store: see kernels.h.
 *
 * A block of queries (rows of one sequence in position order, times the heads that share a KV head) is computed tile by
 * tile, 64 positions each: scores (lanes are positions), then weights, then values (lanes are head elements). With few
 * queries, f16 is converted in registers, once for all queries of a product. With more queries, a part of the tile is
 * converted once for the whole block, into a buffer of 16 KiB: the stage. q8_0 has integer products of its own
 * (attention_int8_vec.h). Values whose width is no multiple of 16 always come from the stage, where zeros follow them.
 * The order of accumulation is that of the rule for each query, whatever the block. A tile may hold positions that a
 * query does not see. Their scores are computed and then replaced. Their values are never multiplied in float, because
 * 0 * infinity is not 0.
 * Include after vec_avx512.h or the like with PRODUCT_SHAPES defined. Threads: pure functions. Stack: see block. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ATTENTION_VEC_H
#define MR_BACKENDS_CPU_KERNELS_ATTENTION_VEC_H

#include <float.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/attention_block.h"
#include "backends/cpu/kernels/attention_int8_vec.h"
#include "backends/cpu/kernels/attention_product.h"
#include "backends/cpu/kernels/vec_exp.h"

/* --- Scores ------------------------------------------------------------------------------------------------------ */

/* Adds the products of head elements [d, d + n) to the scores; d = 0 starts the scores. k: for each block of 16
 * positions, keys [n][16]. */
static void add_scores(block *u, const tile *t, const void *const k[TILE_BLOCKS], int32_t d, int32_t n) {
    int32_t step = n / MAX_SEGMENTS, bytes = u->from == SOURCE_F16 ? 2 : 4;
    product p = {.n_segments = MAX_SEGMENTS, .b_stride = MR_KV_BLOCK, .c_stride = TILE, .is_first = d == 0};
    for (int32_t s = 0; s < MAX_SEGMENTS; s++) {
        p.n[s] = s < MAX_SEGMENTS - 1 ? step : n - s * step;
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

/* Converts head elements [d, d + n) of the tile's F16 keys. out_k: for each block, keys [n][16] in the stage. F32 keys
 * stay where they are. */
static void stage_keys(block *u, const tile *t, int32_t d, int32_t n, const void *out_k[TILE_BLOCKS]) {
    for (int32_t i = 0; i < blocks_of(t->n_positions); i++) {
        if (u->args->kv_type == MR_TYPE_F32) {
            out_k[i] = (const float *)(const void *)t->k[i] + d * MR_KV_BLOCK;
            continue;
        }
        float *stage = u->stage + i * STAGE_WIDTH * MR_KV_BLOCK;
        out_k[i] = stage;
        const uint16_t *k = (const uint16_t *)(const void *)t->k[i] + d * MR_KV_BLOCK;
        for (int32_t e = 0; e < n * MR_KV_BLOCK; e += 16)
            v16_store(stage + e, v16_load_f16(k + e));
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

/* max: the maximum of the tile's scores; without rule T8, also of all scores before. */
MR_ALWAYS_INLINE void set_maximum(block *u, int32_t j, float max) {
    float old = u->m[j];
    u->tile_m[j] = max;
    u->m[j] = max > old ? max : old;
    u->factor[j] = old == -INFINITY ? old : old - u->m[j];
    u->share[j] = max - u->m[j];
}

/* Scales the scores of query j, which sees positions [first, last) of the tile, and takes their maximum. */
MR_ALWAYS_INLINE void scale_scores(block *u, int32_t j, int32_t first, int32_t last, const bool is_full,
                                   const bool has_cap) {
    v16 scale = v16_set1(u->scale[j]), max = v16_set1(u->is_int8 ? -INFINITY : u->m[j]);
    v16 cap = v16_set1(u->args->soft_cap), inverse = v16_set1(1.0f / u->args->soft_cap);
    float *scores = u->scores + j * TILE;
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
    set_maximum(u, j, v16_reduce_max(max));
}

/* Turns the scores of query j into weights, and adds the weights to the lanes l. */
MR_ALWAYS_INLINE void weigh(block *u, int32_t j, int32_t first, int32_t last, const bool is_full) {
    v16 w[TILE / 16], m = v16_set1(u->tile_m[j]);
    float *scores = u->scores + j * TILE, *l = u->l + j * 16;
    MR_UNROLL
    for (int i = 0; i < TILE / 16; i++) {
        w[i] = v16_exp_declining(v16_sub(v16_load(scores + 16 * i), m));
        if (!is_full)
            w[i] = select_range(w[i], first - 16 * i, last - 16 * i, v16_set1(0.0f));
        v16_store(scores + 16 * i, w[i]);
    }
    v16 sum = v16_add(v16_add(v16_add(w[0], w[1]), w[2]), w[3]);
    v16 factor = v16_set1(u->factor[j]);
    if (u->is_int8)
        v16_store(l, v16_fma(sum, v16_set1(u->share[j]), v16_mul(v16_load(l), factor)));
    else
        v16_store(l, v16_fma(v16_load(l), factor, sum));
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
    for (int32_t j = t->first; u->is_int8 && j < t->last; j += 16)
        v16_store(u->share + j, v16_exp_declining(v16_load(u->share + j)));
    for (int32_t j = t->first; j < t->last; j++) {
        if (sees_all(u, t, j))
            weigh(u, j, 0, TILE, true);
        else
            weigh(u, j, tile_hidden(u, t, j), tile_visible(u, t, j), false);
    }
}

/* --- Values ------------------------------------------------------------------------------------------------------ */

/* Converts head elements [d, d + n) of the tile's F16 values to f32 in the stage: [position][n]. */
static void stage_values(block *u, const tile *t, int32_t d, int32_t n) {
    int32_t dim = u->args->v_dim;
    for (int32_t p = 0; p < t->n_positions; p += MR_KV_BLOCK) {
        int32_t n_rows = mr_min_i32(t->n_positions - p, MR_KV_BLOCK);
        float *stage = u->stage + p * n;
        const uint16_t *v = (const uint16_t *)(const void *)t->v[p / MR_KV_BLOCK] + d;
        for (int32_t row = 0; row < n_rows; row++, v += dim, stage += n)
            for (int32_t e = 0; e < n; e += 16)
                v16_store(stage + e, v16_load_f16(v + e));
    }
}

/* n <= 16 elements of an F16 or F32 value. The other lanes are zero. */
MR_ALWAYS_INLINE v16 load_elements(mr_type type, const char *v, int32_t n) {
    uint16_t half[16] = {0};
    if (type == MR_TYPE_F32)
        return v16_load_n((const float *)(const void *)v, n);
    if (n == 16)
        return v16_load_f16((const uint16_t *)(const void *)v);
    memcpy(half, v, (size_t)n * sizeof *half);
    return v16_load_f16(half);
}

/* The same as stage_values for values of any width and type. Elements behind the end of a value are zero. */
static void stage_odd_values(block *u, const tile *t, int32_t d, int32_t n) {
    int32_t dim = u->args->v_dim, bytes = u->args->kv_type == MR_TYPE_F32 ? 4 : 2;
    for (int32_t p = 0; p < t->n_positions; p++) {
        const char *v = t->v[p / MR_KV_BLOCK] + p % MR_KV_BLOCK * dim * bytes;
        for (int32_t e = d; e < d + n; e += 16)
            v16_store(u->stage + p * n + e - d,
                      load_elements(u->args->kv_type, v + e * bytes, mr_min_i32(dim - e, 16)));
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
    product p = {.c = u->o + j * u->o_width + d, .c_stride = u->o_width, .factor = has_factor ? u->factor + j : NULL};
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
    int32_t dim = u->o_width, parts = (dim + STAGE_WIDTH - 1) / STAGE_WIDTH;
    start_ahead(u, t->next_k, t->n_next, u->k_head_bytes);
    for (int32_t d = 0, n; d < dim; d += n, parts--) {
        n = ((dim - d) / 16 + parts - 1) / parts * 16; /* even parts */
        if (u->o_width != u->args->v_dim)
            stage_odd_values(u, t, d, n);
        else if (u->from == SOURCE_STAGE)
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
    int32_t dim = u->args->v_dim, whole = dim / 16 * 16, rest = dim - whole;
    float *l = u->l + j * 16, *all_l = u->all_l + j * 16, *o = u->o + j * u->o_width, *out = u->out[j];
    if (is_first_partition) {
        u->all_m[j] = u->m[j];
        memcpy(all_l, l, 16 * sizeof *l);
        memcpy(out, o, (size_t)dim * sizeof *o);
        return;
    }
    float m = u->m[j] > u->all_m[j] ? u->m[j] : u->all_m[j];
    v16 c1 = v16_exp(v16_set1(u->all_m[j] - m)), c2 = v16_exp(v16_set1(u->m[j] - m));
    v16_store(all_l, v16_fma(v16_load(all_l), c1, v16_mul(v16_load(l), c2)));
    for (int32_t d = 0; d < whole; d += 16)
        v16_store(out + d, v16_fma(v16_load(out + d), c1, v16_mul(v16_load(o + d), c2)));
    if (rest)
        v16_store_n(out + whole, v16_fma(v16_load_n(out + whole, rest), c1, v16_mul(v16_load(o + whole), c2)), rest);
    u->all_m[j] = m;
}

/* Computes the result of query j, with the sink of its head. */
static void finish(block *u, int32_t j) {
    const mr_attention_args *a = u->args;
    float *out = u->out[j];
    int32_t whole = a->v_dim / 16 * 16, rest = a->v_dim - whole;
    v16 sum = v16_set1(v16_tree(v16_load(u->all_l + j * 16))), c = v16_set1(1.0f);
    if (a->sinks) {
        float sink = u->sink[j], m = sink > u->all_m[j] ? sink : u->all_m[j];
        c = v16_exp(v16_set1(u->all_m[j] - m));
        sum = v16_fma(sum, c, v16_exp(v16_set1(sink - m)));
    }
    for (int32_t d = 0; d < whole; d += 16)
        v16_store(out + d, v16_div(v16_mul(v16_load(out + d), c), sum));
    if (rest)
        v16_store_n(out + whole, v16_div(v16_mul(v16_load_n(out + whole, rest), c), sum), rest);
}

static void run_partition(block *u, int32_t start) {
    int32_t n_queries = u->n * u->n_kv, tiles_first = u->first[0] / TILE * TILE;
    for (int32_t j = 0; j < n_queries; j++)
        u->m[j] = -INFINITY;
    memset(u->l, 0, (size_t)n_queries * 16 * sizeof *u->l);
    memset(u->o, 0, (size_t)(n_queries * u->o_width) * sizeof *u->o);
    int32_t p = tiles_first > start ? tiles_first : start;
    for (; p < mr_min_i32(start + PARTITION, u->n_positions); p += TILE)
        for (int32_t g = 0; g < u->n_kv; g++) {
            tile t;
            tile_init(&t, u, p, g);
            if (t.first >= t.last) /* no query sees the tile: it lies between the windows of two queries */
                continue;
            if (u->is_int8)
                int8_scores(u, &t);
            else
                tile_scores(u, &t);
            tile_weights(u, &t);
            if (u->is_int8)
                int8_values(u, &t);
            else
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
    u->is_int8 = a->kv_type == MR_TYPE_Q8_0;
    u->o_width = mr_attention_o_width(a->v_dim);
    u->from = u->o_width != a->v_dim                          ? SOURCE_STAGE
              : a->kv_type == MR_TYPE_F32                     ? SOURCE_F32
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
        if (u->is_int8)
            int8_query(u, i);
    }
    u->n_positions = u->last[n - 1];
    memset(u->factor, 0, sizeof u->factor);
    memset(u->share, 0, sizeof u->share); /* tile_weights also computes lanes behind the last query of a KV head */
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
MR_ALWAYS_INLINE void attention_vec(const mr_attention_args *a, const mr_attention_part *part) {
    block u;
    u.args = a;
    u.k_head_bytes = (int32_t)mr_kv_head_bytes(a->kv_type, a->k_dim);
    u.v_head_bytes = (int32_t)mr_kv_head_bytes(a->kv_type, a->v_dim);
    int32_t all = a->n_heads / a->n_kv_heads, group = mr_min_i32(part->head_last - part->head_first, all);
    int32_t kv_first = part->head_first / all, kv_last = kv_first + (part->head_last - part->head_first) / group;
    int32_t most = mr_attention_most(a->k_dim, a->v_dim);
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
