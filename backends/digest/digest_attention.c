/* backends/digest/digest_attention.c - keys, values and attention: rules K and T. A store of two sequences is written
 * for each shape of heads, and its bytes are added, because every backend has the same layout of keys and values.
 * Attention then reads what the backend itself has written. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "backends/digest/digest_case.h"

enum {
    SHORT_POSITIONS = 66, /* of the second sequence: two tiles */
    MAX_POSITIONS = 1065, /* of the first sequence: three partitions */
    MAX_BLOCKS = (MAX_POSITIONS + MR_KV_BLOCK - 1) / MR_KV_BLOCK,
    MAX_ROWS = MAX_POSITIONS + SHORT_POSITIONS,
    N_QUERY_ROWS = 11, /* five of the first sequence, six of the second */
};

typedef struct shape {
    int32_t n_kv_heads, k_dim, v_dim;
    int32_t n_positions;       /* of the first sequence */
    int32_t n_rot, rope_first; /* keys are rotated when they are written; 0: they are not */
} shape;

typedef struct attention_case {
    int32_t shape, group;
    int32_t window;
    float soft_cap;
    bool has_sinks;
    mr_temperature temperature;
} attention_case;

static const shape SHAPES[] = {
    {2, 16, 16, MAX_POSITIONS, 0, 0}, {1, 32, 32, 577, 32, 0}, {1, 48, 48, 70, 18, 30}, {2, 80, 80, 70, 0, 0},
    {1, 128, 128, 200, 128, 0},       {1, 256, 256, 70, 0, 0}, {2, 64, 64, 200, 48, 0}, {2, 96, 64, 70, 0, 0},
    {1, 576, 512, 20, 64, 512},
};

/* Windows that begin inside of a tile and of a partition, caps, sinks, a temperature. Groups of one head, of all that a
 * kernel takes, and between. */
static const attention_case CASES[] = {
    {0, 8, 0, 0, false, {0, 0}},     {1, 5, 0, 0, false, {0, 0}},  {1, 6, 550, 0, true, {0, 0}},
    {1, 3, 0, 0, false, {0.1f, 63}}, {2, 7, 0, 0, false, {0, 0}},  {3, 3, 0, 0, false, {0, 0}},
    {4, 4, 0, 0, false, {0, 0}},     {5, 1, 0, 0, false, {0, 0}},  {6, 4, 70, 2.5f, false, {0, 0}},
    {7, 2, 0, 30.0f, true, {0, 0}},  {8, 16, 0, 0, false, {0, 0}},
};

/* The store of a shape: tensors that are kept. */
typedef struct store {
    const shape *shape;
    mr_type type;
    int32_t n_blocks;
    int32_t k, v, block_table;
} store;

/* The block of 16 positions of a sequence: scattered over the store, whose number of blocks is no multiple of 7. */
static int32_t block_at(const store *s, int32_t seq, int32_t i) {
    return (seq * ((s->shape->n_positions + MR_KV_BLOCK - 1) / MR_KV_BLOCK) + i) * 7 % s->n_blocks;
}

static void make_store(trial *t, store *s) {
    const shape *h = s->shape;
    s->n_blocks = (h->n_positions + MR_KV_BLOCK - 1) / MR_KV_BLOCK + (SHORT_POSITIONS + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
    s->n_blocks += s->n_blocks % 7 == 0;
    case_forget(t);
    s->k = case_keep_state(t, s->type, h->n_kv_heads * h->k_dim * MR_KV_BLOCK, s->n_blocks);
    s->v = case_keep_state(t, s->type, h->n_kv_heads * h->v_dim * MR_KV_BLOCK, s->n_blocks);
}

static mr_op_params params_of(const store *s, int32_t group) {
    const shape *h = s->shape;
    return (mr_op_params){.attention = {.n_heads = h->n_kv_heads * group,
                                        .n_kv_heads = h->n_kv_heads,
                                        .k_dim = h->k_dim,
                                        .v_dim = h->v_dim,
                                        .scale = 0.125f,
                                        .n_rot = h->n_rot,
                                        .rope_first = h->rope_first,
                                        .pairs = h->k_dim == 128 ? MR_ROPE_HALVES : MR_ROPE_INTERLEAVED}};
}

/* Writes all positions of both sequences. With one KV head the values are the first columns of something wider. Returns
 * whether it has run. */
static bool write_store(trial *t, const store *s) {
    const shape *h = s->shape;
    int32_t slots[MAX_ROWS], n = 0, extra = h->n_kv_heads == 1 ? 3 : 0;
    for (int32_t seq = 0; seq < 2; seq++)
        for (int32_t p = 0; p < (seq ? SHORT_POSITIONS : h->n_positions); p++)
            slots[n++] = block_at(s, seq, p / MR_KV_BLOCK) * MR_KV_BLOCK + p % MR_KV_BLOCK;
    mr_node write = case_begin(t, MR_OP_KV_WRITE, n);
    write.params = params_of(s, 1);
    write.in[0] = case_floats(t, 0, h->n_kv_heads * h->k_dim);
    write.in[1] = case_floats(t, 100, h->n_kv_heads * h->v_dim + extra);
    write.in[2] = case_ints(t, slots);
    write.in[3] = s->k;
    write.in[4] = s->v;
    if (h->n_rot > 0)
        write.in[5] = case_floats(t, 300, h->n_rot);
    else if (s->type != MR_TYPE_Q8_0) /* a score that is infinite; stored NaNs may differ */
        case_float_row(t, write.in[0], n - 1)[0] = INFINITY;
    return case_execute(t, &write) && case_add_rows(t, s->k, s->n_blocks) && case_add_rows(t, s->v, s->n_blocks);
}

static int32_t block_table(trial *t, const store *s) {
    int32_t id = case_tensor(t, MR_TYPE_I32, MAX_BLOCKS, 2, MR_STORAGE_STATE, MR_ROWS_FIXED);
    for (int32_t seq = 0; seq < 2; seq++)
        for (int32_t i = 0; i < MAX_BLOCKS; i++)
            ((int32_t *)case_row(t, id, seq))[i] = block_at(s, seq, i);
    return id;
}

/* Attention of a single row, of two rows of a chunk, and of rows of two sequences around the borders of tiles. */
static void run_attention(trial *t, const store *s, const attention_case *c) {
    static const int32_t SEQ[N_QUERY_ROWS] = {0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}, ENDS[] = {0, 1, 3, N_QUERY_ROWS};
    const shape *h = s->shape;
    int32_t last = h->n_positions - 1, n_heads = h->n_kv_heads * c->group;
    const int32_t position[N_QUERY_ROWS] = {last - 4, last - 3, last - 2, last - 1,           last, 0, 61,
                                            62,       63,       64,       SHORT_POSITIONS - 1};
    mr_op_params params = params_of(s, c->group);
    params.attention.window = c->window;
    params.attention.soft_cap = c->soft_cap;
    params.attention.temperature = c->temperature;
    for (int i = 0; i + 1 < CASE_COUNT(ENDS); i++) {
        mr_node n = case_begin(t, MR_OP_ATTENTION, ENDS[i + 1] - ENDS[i]);
        n.params = params;
        n.in[0] = case_floats(t, 3 + 131 * ENDS[i], n_heads * h->k_dim);
        n.in[1] = s->k;
        n.in[2] = s->v;
        n.in[3] = case_ints(t, SEQ + ENDS[i]);
        n.in[4] = case_ints(t, position + ENDS[i]);
        n.in[5] = block_table(t, s);
        if (c->has_sinks)
            n.in[6] = case_vectors(t, 200, n_heads, 1);
        n.out = case_result(t, MR_TYPE_F32, n_heads * h->v_dim);
        case_run(t, &n);
    }
}

static void run_shape(trial *t, int32_t idx, mr_type type) {
    store s = {.shape = &SHAPES[idx], .type = type};
    make_store(t, &s);
    case_part(t, MR_OP_KV_WRITE, (int32_t)type);
    if (!write_store(t, &s))
        return;
    case_part(t, MR_OP_ATTENTION, (int32_t)type);
    for (int32_t i = 0; i < CASE_COUNT(CASES); i++)
        if (CASES[i].shape == idx)
            run_attention(t, &s, &CASES[i]);
}

void digest_attention(trial *t) {
    static const mr_type TYPES[] = {MR_TYPE_F16, MR_TYPE_Q8_0, MR_TYPE_F32};
    for (int i = 0; i < CASE_COUNT(TYPES); i++)
        for (int32_t idx = 0; idx < CASE_COUNT(SHAPES); idx++)
            if (TYPES[i] != MR_TYPE_Q8_0 || (SHAPES[idx].k_dim % 32 == 0 && SHAPES[idx].v_dim % 32 == 0))
                run_shape(t, idx, TYPES[i]);
}
