/* backends/cpu/kernels/attention_scalar.c - rules T and T8 as specified: one row and head at a time.
 * Layout of the store: see kernels.h.
 * Order of accumulation: scores over head elements, values over positions, tiles of 64 positions, partitions of 512;
 * the sum of weights has 16 lanes by position. Nothing depends on the other rows of the call. */
// SPDX-License-Identifier: Apache-2.0
#include <float.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/vec_scalar.h"
#include "engine/base/fmath.h"
#include "engine/tensor/f16.h"

enum { TILE = 64, PARTITION = MR_ATTENTION_PARTITION };

/* State after some positions: the maximum score, the lanes of the sum of weights, the weighted sum of values. */
typedef struct state {
    float m, l[MR_LANES], o[MR_ATTENTION_DIM];
} state;

/* One row and head. It sees positions [first, last). */
typedef struct query {
    const mr_attention_args *args;
    const float *q;
    float *out;
    const int32_t *blocks; /* of the row's sequence */
    int32_t head, kv_head, first, last;
    float scale;                 /* of scores; with q8_0, also of x */
    int32_t x[MR_ATTENTION_DIM]; /* rule T8: q as integers */
} query;

/* Element i of the keys or values of a block and head, F16 or F32. */
static float kv_get(mr_type type, const void *store, int32_t i) {
    return type == MR_TYPE_F32 ? ((const float *)store)[i] : mr_f16_to_f32(((const uint16_t *)store)[i]);
}

/* The scale of head elements 32 b to 32 b + 31 at column t of a Q8_0 block. */
static float scale_get(const void *store, int32_t dim, int32_t b, int32_t t) {
    const uint16_t *scales = (const uint16_t *)(const void *)((const char *)store + dim * MR_KV_BLOCK);
    return mr_f16_to_f32(scales[b * MR_KV_BLOCK + t]);
}

/* The keys of the block that holds position p, and of the query's KV head. */
static const void *keys_of(const query *u, int32_t p) {
    const mr_attention_args *a = u->args;
    return (const char *)a->k_store + (size_t)u->blocks[p / MR_KV_BLOCK] * a->k_block_bytes +
           (size_t)u->kv_head * mr_kv_head_bytes(a->kv_type, a->k_dim);
}
static const void *values_of(const query *u, int32_t p) {
    const mr_attention_args *a = u->args;
    return (const char *)a->v_store + (size_t)u->blocks[p / MR_KV_BLOCK] * a->v_block_bytes +
           (size_t)u->kv_head * mr_kv_head_bytes(a->kv_type, a->v_dim);
}

/* The product of q and the key at column t of a block. */
static float product(const query *u, const void *k, int32_t t) {
    const mr_attention_args *a = u->args;
    float s = 0;
    for (int32_t d = 0; d < a->k_dim; d++)
        s = fmaf(u->q[d], kv_get(a->kv_type, k, d * MR_KV_BLOCK + t), s);
    return s;
}
static float product_int8(const query *u, const int8_t *k, int32_t t) {
    float s = 0;
    for (int32_t b = 0; b < u->args->k_dim / 32; b++) {
        int32_t sum = 0;
        for (int32_t d = 32 * b; d < 32 * b + 32; d++)
            sum += u->x[d] * k[mr_kv_key_at(d, t)];
        s = fmaf((float)sum, scale_get(k, u->args->k_dim, b, t), s);
    }
    return s;
}

static float score(const query *u, int32_t p) {
    const mr_attention_args *a = u->args;
    const void *k = keys_of(u, p);
    int32_t t = p % MR_KV_BLOCK;
    float s = (a->kv_type == MR_TYPE_Q8_0 ? product_int8(u, k, t) : product(u, k, t)) * u->scale;
    return a->soft_cap != 0.0f ? a->soft_cap * mr_tanhf(s * (1.0f / a->soft_cap)) : s;
}

static void add_value(const query *u, int32_t p, float w, float *o) {
    const mr_attention_args *a = u->args;
    const void *v = values_of(u, p);
    for (int32_t d = 0; d < a->v_dim; d++)
        o[d] = fmaf(w, kv_get(a->kv_type, v, p % MR_KV_BLOCK * a->v_dim + d), o[d]);
}

/* A tile whose weights w are relative to its maximum m. The query sees positions [first, last) of it. */
typedef struct tile {
    int32_t position, first, last;
    float m, w[TILE];
} tile;

/* Rule T8 for head elements 32 b to 32 b + 31. c, e: factors of the sums so far and of the tile. */
static void add_values_int8(const query *u, const tile *t, int32_t b, float c, float e, float *o) {
    int32_t dim = u->args->v_dim, sums[32] = {0};
    float d[TILE], most = 0.0f;
    for (int32_t i = t->first; i < t->last; i++) {
        d[i] = scale_get(values_of(u, t->position + i), dim, b, (t->position + i) % MR_KV_BLOCK);
        most = d[i] <= most ? most : d[i]; /* a NaN stays */
        if (most != most)
            break;
    }
    float inverse = most > 0.0f ? MR_ATTENTION_INT / most : 0.0f, factor = most / MR_ATTENTION_INT * e;
    for (int32_t i = t->first; i < t->last && most > 0.0f; i++) {
        const int8_t *v = values_of(u, t->position + i);
        float r = t->w[i] * (d[i] * inverse);
        int32_t x = r == r ? (int32_t)round_even(r) : 0; /* a NaN is in the sum of weights, too */
        for (int32_t j = 0; j < 32; j++)
            sums[j] += x * v[mr_kv_value_at(32 * b + j, (t->position + i) % MR_KV_BLOCK, dim)];
    }
    for (int32_t j = 0; j < 32; j++)
        o[32 * b + j] = fmaf((float)sums[j], factor, o[32 * b + j] * c);
}

/* Adds a tile to the state: rule T8. */
static void add_tile_int8(const query *u, const tile *t, const float *sum, state *st) {
    float m = t->m > st->m ? t->m : st->m;
    float c = st->m == -INFINITY ? 0.0f : mr_expf_or_nan(st->m - m), e = mr_expf_or_nan(t->m - m);
    for (int32_t i = 0; i < MR_LANES; i++)
        st->l[i] = fmaf(sum[i], e, st->l[i] * c);
    for (int32_t b = 0; b < u->args->v_dim / 32; b++)
        add_values_int8(u, t, b, c, e, st->o);
    st->m = m;
}

/* Adds the tile at `position`. The query sees at least one position of the tile; the others have weight 0. */
static void add_tile(const query *u, int32_t position, state *st) {
    bool is_int8 = u->args->kv_type == MR_TYPE_Q8_0;
    tile t = {.position = position,
              .first = mr_max_i32(u->first - position, 0),
              .last = mr_min_i32(u->last - position, TILE),
              .m = is_int8 ? -INFINITY : st->m};
    float *w = t.w, sum[MR_LANES];
    for (int32_t i = t.first; i < t.last; i++) {
        w[i] = score(u, position + i);
        t.m = w[i] > t.m ? w[i] : t.m; /* a NaN is not the maximum, but gets a weight of NaN below */
    }
    for (int32_t i = t.first; i < t.last; i++)
        w[i] = mr_expf_or_nan(w[i] - t.m);
    for (int32_t i = 0; i < MR_LANES; i++)
        sum[i] = ((w[i] + w[i + 16]) + w[i + 32]) + w[i + 48];
    if (is_int8) {
        add_tile_int8(u, &t, sum, st);
        return;
    }
    float c = st->m == -INFINITY ? 0.0f : mr_expf_or_nan(st->m - t.m);
    for (int32_t i = 0; i < MR_LANES; i++)
        st->l[i] = fmaf(st->l[i], c, sum[i]);
    for (int32_t d = 0; d < u->args->v_dim; d++)
        st->o[d] *= c;
    for (int32_t i = t.first; i < t.last; i++)
        add_value(u, position + i, w[i], st->o);
    st->m = t.m;
}

static void run_partition(const query *u, int32_t partition, state *st) {
    int32_t start = partition * PARTITION, end = mr_min_i32(start + PARTITION, u->last);
    *st = (state){.m = -INFINITY};
    for (int32_t p = mr_max_i32(start, u->first / TILE * TILE); p < end; p += TILE)
        add_tile(u, p, st);
}

static void merge(state *all, const state *part, int32_t v_dim) {
    float m = part->m > all->m ? part->m : all->m;
    float c1 = mr_expf_or_nan(all->m - m), c2 = mr_expf_or_nan(part->m - m);
    for (int32_t i = 0; i < MR_LANES; i++)
        all->l[i] = fmaf(all->l[i], c1, part->l[i] * c2);
    for (int32_t d = 0; d < v_dim; d++)
        all->o[d] = fmaf(all->o[d], c1, part->o[d] * c2);
    all->m = m;
}

/* The result of all partitions, with the sink of the head. */
static void finish(const query *u, const state *all) {
    const float *sinks = u->args->sinks;
    float sum = lanes_tree(all->l), c = 1.0f;
    if (sinks) {
        float sink = sinks[u->head], m = sink > all->m ? sink : all->m;
        c = mr_expf_or_nan(all->m - m);
        sum = fmaf(sum, c, mr_expf_or_nan(sink - m));
    }
    for (int32_t d = 0; d < u->args->v_dim; d++)
        u->out[d] = all->o[d] * c / sum;
}

/* Computes all partitions and merges them. */
static void attend(const query *u) {
    state all, part;
    int32_t first = u->first / PARTITION;
    run_partition(u, first, &all);
    for (int32_t p = first + 1; p * PARTITION < u->last; p++) {
        run_partition(u, p, &part);
        merge(&all, &part, u->args->v_dim);
    }
    finish(u, &all);
}

/* Computes one partition of a chain. j: number of the query in the chain. The state of the merged partitions is in the
 * chain and in out. */
static void attend_part(const query *u, const mr_attention_part *part, int32_t j) {
    mr_attention_chain *chain = part->chain;
    size_t o_bytes = (size_t)u->args->v_dim * sizeof(float);
    int32_t p = part->partition;
    state all, own;
    if (p < u->first / PARTITION || p * PARTITION >= u->last)
        return;
    run_partition(u, p, &own);
    if (p > u->first / PARTITION) {
        all.m = chain->m[j];
        memcpy(all.l, chain->l + j * MR_LANES, sizeof all.l);
        memcpy(all.o, u->out, o_bytes);
        merge(&all, &own, u->args->v_dim);
    } else
        all = own;
    chain->m[j] = all.m;
    memcpy(chain->l + j * MR_LANES, all.l, sizeof all.l);
    memcpy(u->out, all.o, o_bytes);
    if ((p + 1) * PARTITION >= u->last)
        finish(u, &all);
}

/* Rule T8: q as integers x. The scale of x goes into the scale of scores. */
static void quantize_query(query *u) {
    uint32_t bits = 0;
    for (int32_t d = 0; d < u->args->k_dim; d++)
        bits = (mr_f32_bits(u->q[d]) & 0x7fffffffu) > bits ? mr_f32_bits(u->q[d]) & 0x7fffffffu : bits;
    float amax = mr_bits_f32(bits), scale = amax / MR_ATTENTION_INT;
    bool is_zero = !(amax <= FLT_MAX) || scale < FLT_MIN;
    for (int32_t d = 0; d < u->args->k_dim; d++)
        u->x[d] = is_zero ? 0 : (int32_t)round_even(u->q[d] * (MR_ATTENTION_INT / amax));
    u->scale *= amax <= FLT_MAX ? scale : NAN;
}

void mr_attention_scalar(const mr_attention_args *a, const mr_attention_part *part) {
    int32_t group = a->n_heads / a->n_kv_heads, j = 0;
    if (part->chain)
        mr_attention_chain_wait(part->chain, part->partition);
    for (int32_t r = part->row_first; r < part->row_last; r++) {
        const float *q = (const float *)((const char *)a->q + (size_t)r * a->q_row_bytes);
        float *out = (float *)((char *)a->out + (size_t)r * a->out_row_bytes);
        for (int32_t h = part->head_first; h < part->head_last; h++, j++) {
            query u = {.args = a,
                       .q = q + (int64_t)h * a->k_dim,
                       .out = out + (int64_t)h * a->v_dim,
                       .blocks = a->block_table + (int64_t)a->row_seq[r] * a->table_stride,
                       .head = h,
                       .kv_head = h / group,
                       .first = mr_attention_first(a, r),
                       .last = a->row_position[r] + 1,
                       .scale = mr_attention_scale(a, r)};
            if (a->kv_type == MR_TYPE_Q8_0)
                quantize_query(&u);
            if (part->chain)
                attend_part(&u, part, j);
            else
                attend(&u);
        }
    }
    if (part->chain)
        mr_attention_chain_pass(part->chain, part->partition);
}
