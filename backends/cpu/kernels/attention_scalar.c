/* backends/cpu/kernels/attention_scalar.c - rule T as specified: one row and head at a time.
 * Layout: k [block][kv head][head_dim][16], v [block][kv head][16][head_dim]; see kernels.h.
 * Order of accumulation: scores over head elements, values over positions, tiles of 64 positions, partitions of 512;
 * the sum of weights has 16 lanes by position. Nothing depends on the other rows of the call. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/vec_scalar.h"
#include "engine/base/fmath.h"
#include "engine/tensor/f16.h"

enum { TILE = 64, PARTITION = 512, MAX_DIM = 256 };

/* What is known after some positions: the maximum score, lanes of the sum of weights, the weighted sum of values. */
typedef struct state {
    float m, l[MR_LANES], o[MAX_DIM];
} state;

/* One row and head. */
typedef struct query {
    const mr_attention_args *args;
    const float *q;
    const int32_t *blocks; /* of the row's sequence */
    int32_t kv_head, n_visible;
} query;

static float kv_get(const void *store, int64_t i, mr_type type) {
    return type == MR_TYPE_F16 ? mr_f16_to_f32(((const uint16_t *)store)[i]) : ((const float *)store)[i];
}

/* Element 0 of the block and head that hold position p. */
static int64_t block_base(const query *u, int32_t p) {
    const mr_attention_args *a = u->args;
    return ((int64_t)u->blocks[p / MR_KV_BLOCK] * a->n_kv_heads + u->kv_head) * a->head_dim * MR_KV_BLOCK;
}

static float score(const query *u, int32_t p) {
    const mr_attention_args *a = u->args;
    int64_t base = block_base(u, p) + p % MR_KV_BLOCK;
    float s = 0;
    for (int32_t d = 0; d < a->head_dim; d++)
        s = fmaf(u->q[d], kv_get(a->k_store, base + d * MR_KV_BLOCK, a->kv_type), s);
    return s * a->scale;
}

static void add_value(const query *u, int32_t p, float w, float *o) {
    const mr_attention_args *a = u->args;
    int64_t base = block_base(u, p) + (int64_t)(p % MR_KV_BLOCK) * a->head_dim;
    for (int32_t d = 0; d < a->head_dim; d++)
        o[d] = fmaf(w, kv_get(a->v_store, base + d, a->kv_type), o[d]);
}

/* e^x, and NaN for every NaN. */
static float exp_or_nan(float x) {
    return x == x ? mr_expf(x) : x;
}

/* Positions [first, last) of one tile, at least one; positions of the tile from last on weigh 0. */
static void add_tile(const query *u, int32_t first, int32_t last, state *st) {
    int32_t n = last - first;
    float s[TILE], w[TILE] = {0}, m = st->m;
    for (int32_t i = 0; i < n; i++) {
        s[i] = score(u, first + i);
        m = s[i] > m ? s[i] : m; /* a NaN is not the maximum, but gets a weight of NaN below */
    }
    for (int32_t i = 0; i < n; i++)
        w[i] = exp_or_nan(s[i] - m);
    float c = st->m == -INFINITY ? 0.0f : exp_or_nan(st->m - m);
    for (int32_t i = 0; i < MR_LANES; i++)
        st->l[i] = fmaf(st->l[i], c, ((w[i] + w[i + 16]) + w[i + 32]) + w[i + 48]);
    for (int32_t d = 0; d < u->args->head_dim; d++)
        st->o[d] *= c;
    for (int32_t i = 0; i < n; i++)
        add_value(u, first + i, w[i], st->o);
    st->m = m;
}

/* Partition [first, last), last at most the number of visible positions. */
static void run_partition(const query *u, int32_t first, int32_t last, state *st) {
    *st = (state){.m = -INFINITY};
    for (int32_t p = first; p < last; p += TILE)
        add_tile(u, p, p + TILE < last ? p + TILE : last, st);
}

static void merge(state *all, const state *part, int32_t head_dim) {
    float m = part->m > all->m ? part->m : all->m;
    float c1 = exp_or_nan(all->m - m), c2 = exp_or_nan(part->m - m);
    for (int32_t i = 0; i < MR_LANES; i++)
        all->l[i] = fmaf(all->l[i], c1, part->l[i] * c2);
    for (int32_t d = 0; d < head_dim; d++)
        all->o[d] = fmaf(all->o[d], c1, part->o[d] * c2);
    all->m = m;
}

static void attend(const query *u, float *out) {
    state all, part;
    for (int32_t p = 0; p < u->n_visible; p += PARTITION) {
        run_partition(u, p, p + PARTITION < u->n_visible ? p + PARTITION : u->n_visible, p ? &part : &all);
        if (p)
            merge(&all, &part, u->args->head_dim);
    }
    float sum = lanes_tree(all.l);
    for (int32_t d = 0; d < u->args->head_dim; d++)
        out[d] = all.o[d] / sum;
}

void mr_attention_scalar(const mr_attention_args *a, int32_t row_first, int32_t row_last, int32_t kv_head_first,
                         int32_t kv_head_last) {
    int32_t group = a->n_heads / a->n_kv_heads;
    for (int32_t r = row_first; r < row_last; r++) {
        const float *q = (const float *)((const char *)a->q + (size_t)r * a->q_row_bytes);
        float *out = (float *)((char *)a->out + (size_t)r * a->out_row_bytes);
        for (int32_t h = kv_head_first * group; h < kv_head_last * group; h++) {
            query u = {.args = a,
                       .q = q + (int64_t)h * a->head_dim,
                       .blocks = a->block_table + (int64_t)a->row_seq[r] * a->table_stride,
                       .kv_head = h / group,
                       .n_visible = a->row_position[r] + 1};
            attend(&u, out + (int64_t)h * a->head_dim);
        }
    }
}
