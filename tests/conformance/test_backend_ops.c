/* One case for each op; loops over types and classes of shapes: one row, around tiles, odd widths. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "engine/kv/kv_store.h"
#include "test_backend.h"
#include "tests/support/test.h"

enum { NONE = MR_NO_TENSOR };

/* --- Products ---------------------------------------------------------------------------------------------------- */

static int32_t build_matmul(scene *s, const shape *p) {
    int32_t w = scene_matrix(s, p->type, p->k, p->n, p->storage);
    if (w == NONE)
        return NONE;
    int32_t x = scene_floats(s, p->k, MR_ROWS_STEP);
    int32_t bias = p->bias ? scene_vector(s, p->n) : NONE;
    int32_t add = p->add ? scene_floats(s, p->n, MR_ROWS_STEP) : NONE;
    return mr_graph_matmul(s->g, w, x, bias, add);
}

static bool is_weight(int32_t type) {
    const mr_type_info *info = mr_type_get(type);
    return info && info->is_weight;
}

/* Every type, in both layouts, one row and many. */
void test_matmul(void **state) {
    (void)state;
    static const int32_t rows[] = {1, 3, 17};
    int n = 0;
    for (int32_t type = 0; type < MR_TYPE_FILE_COUNT; type++)
        for (int i = 0; i < 6 && is_weight(type); i++, n++) {
            shape p = {.type = (mr_type)type, .k = 512, .n = 40, .rows = rows[i % 3], .bias = i % 2, .add = i > 2};
            p.storage = i < 3 ? MR_STORAGE_WEIGHT : MR_STORAGE_FILE;
            expect_same("matmul", build_matmul, NULL, &p);
        }
    assert_true(n >= 30);
}

/* The common types, over panels and tiles that are full, short by one and one too long. */
void test_matmul_shapes(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_F16, MR_TYPE_BF16, MR_TYPE_Q8_0, MR_TYPE_Q4_0, MR_TYPE_Q4_K};
    static const int32_t ns[] = {1, 15, 16, 17, 31, 33, 64, 100}, rows[] = {1, 2, 4, 5, 7, 8, 9, 16, 31, 33, 65};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t i = 0; i < 24; i++) {
            shape p = {.type = types[t], .k = i % 3 ? 256 : 768, .storage = MR_STORAGE_WEIGHT};
            p.n = ns[i % (sizeof ns / sizeof *ns)];
            p.rows = rows[i % (sizeof rows / sizeof *rows)];
            p.bias = i % 4 == 1;
            p.add = i % 5 == 2;
            expect_same("matmul", build_matmul, NULL, &p);
        }
}

/* --- Rows -------------------------------------------------------------------------------------------------------- */

static int32_t build_norm(scene *s, const shape *p) {
    return mr_graph_rms_norm(s->g, scene_floats(s, p->k, MR_ROWS_STEP), scene_vector(s, p->n), 1e-5f);
}

static int32_t build_norm_first(scene *s, const shape *p) {
    return mr_graph_rms_norm_first(s->g, scene_floats(s, p->k, MR_ROWS_STEP), scene_vector(s, p->n), 1e-5f);
}

static int32_t build_gate(scene *s, const shape *p) {
    int32_t gate = scene_floats(s, p->k, MR_ROWS_STEP);
    return mr_graph_glu(s->g, gate, scene_floats(s, p->k, MR_ROWS_STEP), p->glu);
}

static int32_t build_add(scene *s, const shape *p) {
    int32_t a = scene_floats(s, p->k, MR_ROWS_STEP);
    return mr_graph_add(s->g, a, scene_floats(s, p->k, MR_ROWS_STEP));
}

static int32_t build_add_gated(scene *s, const shape *p) {
    int32_t a = scene_floats(s, p->k, MR_ROWS_STEP), b = scene_floats(s, p->k, MR_ROWS_STEP);
    return mr_graph_add_gated(s->g, a, b, scene_floats(s, 1, MR_ROWS_STEP));
}

static int32_t build_scale(scene *s, const shape *p) {
    return mr_graph_scale(s->g, scene_floats(s, p->k, MR_ROWS_STEP), -12.3f);
}

static int32_t build_soft_cap(scene *s, const shape *p) {
    return mr_graph_soft_cap(s->g, scene_floats(s, p->k, MR_ROWS_STEP), p->soft_cap);
}

/* A shared expert's result, and its gate of one row of weights. */
static int32_t build_shared(scene *s, const shape *p) {
    int32_t x = scene_floats(s, p->k, MR_ROWS_STEP), add = scene_floats(s, p->n, MR_ROWS_STEP);
    int32_t gate = scene_matrix(s, p->type, p->k, 1, p->storage), w = scene_matrix(s, p->type, p->k, p->n, p->storage);
    if (gate == NONE || w == NONE)
        return NONE;
    int32_t y = mr_graph_matmul(s->g, w, x, NONE, NONE);
    return mr_graph_add_gated(s->g, add, y, mr_graph_matmul(s->g, gate, x, NONE, NONE));
}

/* A norm, and a gate, that write the activations of a product themselves. */
static int32_t build_fused(scene *s, const shape *p) {
    int32_t up = scene_matrix(s, p->type, p->k, p->n, MR_STORAGE_WEIGHT);
    int32_t down = up == NONE ? NONE : scene_matrix(s, p->type, p->n, p->k, MR_STORAGE_WEIGHT);
    if (down == NONE)
        return NONE;
    int32_t h = mr_graph_rms_norm(s->g, scene_floats(s, p->k, MR_ROWS_STEP), scene_vector(s, p->k), 1e-6f);
    int32_t x = mr_graph_matmul(s->g, up, h, NONE, NONE);
    int32_t y = mr_graph_glu(s->g, x, scene_floats(s, p->n, MR_ROWS_STEP), p->glu);
    return mr_graph_matmul(s->g, down, y, NONE, NONE);
}

static int32_t build_gate_up(scene *s, const shape *p) {
    int32_t gate = scene_matrix(s, p->type, p->k, p->n, p->storage);
    int32_t up = gate == NONE ? NONE : scene_matrix(s, p->type, p->k, p->n, p->storage);
    if (up == NONE)
        return NONE;
    int32_t x = scene_floats(s, p->k, MR_ROWS_STEP);
    gate = mr_graph_matmul(s->g, gate, x, NONE, NONE);
    return mr_graph_glu(s->g, gate, mr_graph_matmul(s->g, up, x, NONE, NONE), p->glu);
}

static int32_t build_take(scene *s, const shape *p) {
    int32_t rows[64];
    for (int32_t i = 0; i < s->max_rows[MR_ROWS_OUT]; i++)
        rows[i] = (i * 7 + 3) % p->rows;
    int32_t x = scene_floats(s, p->k, MR_ROWS_STEP);
    return mr_graph_take_rows(s->g, x, scene_ints(s, rows, MR_ROWS_OUT));
}

static int32_t build_top(scene *s, const shape *p) {
    return mr_graph_top(s->g, scene_floats(s, p->k, MR_ROWS_OUT));
}

/* Vocabularies around the number of tokens that are taken. */
void test_top(void **state) {
    (void)state;
    static const int32_t widths[] = {1, 100, 1023, 1024, 1025, 5000}, rows[] = {1, 5};
    for (size_t i = 0; i < 12; i++)
        expect_same("top", build_top, NULL, &(shape){.k = widths[i % 6], .rows = rows[i / 6]});
}

/* Kind and limit number i. */
static mr_glu glu_of(size_t i) {
    return (mr_glu){.kind = (mr_glu_kind)(i % MR_GLU_KINDS), .limit = i % 3 ? 0.0f : 0.25f};
}

void test_rows(void **state) {
    (void)state;
    static const int32_t widths[] = {1, 15, 16, 17, 64, 100, 257, 1024}, rows[] = {1, 2, 33};
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_BF16, MR_TYPE_Q8_0};
    for (size_t i = 0; i < 24; i++) {
        shape p = {.k = widths[i % 8], .rows = rows[i / 8], .glu = glu_of(i)};
        expect_same("glu", build_gate, NULL, &p);
        expect_same("add", build_add, NULL, &p);
        expect_same("add_gated", build_add_gated, NULL, &p);
        expect_same("scale", build_scale, NULL, &p);
        p.soft_cap = i % 2 ? 30.0f : 0.5f;
        expect_same("soft_cap", build_soft_cap, NULL, &p);
        expect_same("take_rows", build_take, NULL, &p);
        p.n = p.k;
        expect_same("rms_norm", build_norm, NULL, &p);
        p.k *= 3; /* heads that are normed apart */
        expect_same("rms_norm", build_norm, NULL, &p);
        p.k = p.n + 1 + (int32_t)i * 5;
        expect_same("rms_norm of the first columns", build_norm_first, NULL, &p);
    }
    for (size_t i = 0; i < 9; i++) {
        shape p = {.type = types[i % 3], .k = 64, .n = i % 2 ? 160 : 96, .rows = rows[i / 3], .glu = glu_of(i)};
        expect_same("norm and gate before products", build_fused, NULL, &p);
        p.storage = i % 2 ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT;
        expect_same("gate_up", build_gate_up, NULL, &p);
        expect_same("shared expert", build_shared, NULL, &p);
    }
}

static int32_t build_experts(scene *s, const shape *p) {
    shape up = *p, down = *p;
    down.k = p->n;
    down.n = p->k;
    mr_experts_desc desc = {.n = p->experts, .n_used = p->used, .routing = p->routing, .shared = MR_NO_TENSOR};
    desc.router = scene_matrix(s, MR_TYPE_F32, p->k, p->experts, p->storage);
    desc.gate = scene_matrices(s, &up);
    desc.up = scene_matrices(s, &up);
    desc.down = scene_matrices(s, &down);
    if (desc.router == NONE || desc.gate == NONE || desc.down == NONE)
        return NONE;
    desc.glu = p->glu;
    mr_expert_biases biases;
    if (p->bias) {
        biases = (mr_expert_biases){scene_vector(s, p->experts), scene_vector(s, p->experts),
                                    scene_vectors(s, p->n, p->experts), scene_vectors(s, p->n, p->experts),
                                    scene_vectors(s, p->k, p->experts)};
        desc.biases = &biases;
        desc.shared = scene_floats(s, p->k, MR_ROWS_STEP);
    }
    int32_t x = scene_floats(s, p->k, MR_ROWS_STEP);
    return mr_graph_experts(s->g, x, scene_floats(s, p->k, MR_ROWS_STEP), &desc);
}

/* One expert of many, most, all; matrices that end inside a panel; both layouts. */
void test_experts(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_F16, MR_TYPE_BF16, MR_TYPE_Q8_0, MR_TYPE_Q4_K, MR_TYPE_Q5_1};
    static const int32_t rows[] = {1, 2, 33}, used[] = {1, 2, 5, 8};
    for (size_t i = 0; i < 24; i++) {
        shape p = {.type = types[i % 6], .storage = i / 6 % 2 ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT, .k = 256};
        p.n = mr_type_get(p.type)->block_elems == 1 ? 40 : 256;
        p.rows = rows[i / 8];
        p.used = used[i % 4];
        p.experts = i / 2 % 2 ? 8 : 11;
        p.bias = i % 5 > 2;
        p.glu = glu_of(i / 3);
        p.routing = (mr_routing){.score = (mr_route_score)(i / 4 % MR_ROUTE_SCORES), .is_normalised = i % 2};
        p.routing.scale = i % 3 ? 0.0f : 2.5f;
        if (p.experts == 8 && p.used < 8)
            p.routing.n_groups = 4, p.routing.n_groups_used = 3, p.routing.n_group_best = 1 + (int32_t)i % 2;
        expect_same("experts", build_experts, NULL, &p);
    }
}

static int32_t build_heads(scene *s, const shape *p) {
    int32_t w = scene_matrices(s, p);
    return w == NONE ? NONE
                     : mr_graph_head_matmul(s->g, w, scene_floats(s, p->head_dim * p->heads, MR_ROWS_STEP), p->heads);
}

/* Heads with and without elements that are copied, results that end inside a panel, both layouts. */
void test_heads(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_F16, MR_TYPE_BF16, MR_TYPE_Q8_0, MR_TYPE_Q4_K, MR_TYPE_Q5_1};
    static const int32_t rows[] = {1, 2, 33, 70}, heads[] = {1, 2, 5, 16}, n[] = {40, 1, 128};
    for (size_t i = 0; i < 24; i++) {
        shape p = {.type = types[i % 6], .storage = i / 6 % 2 ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT, .n = n[i % 3]};
        p.k = p.type == MR_TYPE_Q4_K ? 256 : 64;
        p.rows = rows[i / 6];
        p.heads = p.experts = heads[i / 2 % 4];
        p.head_dim = p.k + (i % 4 == 0 ? 0 : (int32_t)i);
        expect_same("head_matmul", build_heads, NULL, &p);
    }
}

static mr_neurons_desc build_neurons(scene *s, const shape *p, int32_t n) {
    return (mr_neurons_desc){scene_matrix(s, p->type, p->k, n, MR_STORAGE_FILE),
                             scene_matrix(s, p->type, p->k, n, MR_STORAGE_FILE),
                             scene_matrix(s, p->type, p->k, n, MR_STORAGE_FILE)};
}

/* A sparse part of n neurons; the predictor has 256 hidden numbers. All matrices are in file layout, so that a device
 * without these ops is left out. With more than 512 neurons, those behind the first partition have matrices of their
 * own. */
static int32_t build_sparse(scene *s, const shape *p) {
    mr_sparse_desc desc = {.threshold = 0.001f, .unit = p->experts ? MR_RELU_BOTH : MR_RELU_GATE};
    desc.predict_in = scene_matrix(s, p->type, p->k, 256, p->storage);
    desc.predict_out = desc.predict_in == NONE ? NONE : scene_matrix(s, p->type, 256, p->n, p->storage);
    if (desc.predict_out == NONE)
        return NONE;
    bool has_cold = p->n > 512;
    const mr_neurons_desc hot = build_neurons(s, p, has_cold ? 256 : p->n);
    const mr_neurons_desc cold = has_cold ? build_neurons(s, p, p->n - 256) : (mr_neurons_desc){0};
    desc.gate = hot.gate;
    desc.up = hot.up;
    desc.down = hot.down;
    desc.cold = has_cold ? &cold : NULL;
    int32_t x = scene_floats(s, p->k, MR_ROWS_STEP), h = scene_floats(s, p->k, MR_ROWS_STEP);
    return mr_graph_sparse(s->g, x, h, p->add ? scene_floats(s, p->k, MR_ROWS_STEP) : NONE, &desc);
}

void test_sparse(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F16, MR_TYPE_Q4_0, MR_TYPE_Q8_0, MR_TYPE_F32, MR_TYPE_Q4_K};
    static const int32_t rows[] = {1, 4, 33}, ns[] = {40, 256, 300, 600};
    for (size_t i = 0; i < 15; i++) {
        shape p = {.type = types[i % 5], .storage = MR_STORAGE_FILE, .k = i % 3 ? 256 : 512};
        p.rows = rows[i / 5];
        p.n = ns[i % 4];
        p.add = i % 2 == 0;
        p.experts = i % 3 == 0;
        expect_same("sparse", build_sparse, NULL, &p);
    }
}

static int32_t build_rope(scene *s, const shape *p) {
    int32_t positions[64];
    for (int32_t i = 0; i < p->rows; i++)
        positions[i] = i * i * 37 + (int32_t)(rng_next(&s->r) % 5);
    mr_rope_desc desc = {.head_dim = p->head_dim, .first = p->rope_first, .n_rot = p->n_rot, .pairs = p->pairs};
    int32_t table =
        mr_graph_rope_table(s->g, scene_angles(s, p->n_rot / 2), scene_ints(s, positions, MR_ROWS_STEP), 1.1f);
    return mr_graph_rope(s->g, scene_floats(s, p->heads * p->head_dim, MR_ROWS_STEP), table, &desc);
}

void test_rope(void **state) {
    (void)state;
    static const int32_t dims[][2] = {{16, 16}, {64, 64}, {64, 48}, {80, 32}, {128, 128}, {256, 2}};
    static const int32_t rows[] = {1, 3, 33};
    for (int i = 0; i < 36; i++) {
        shape p = {.head_dim = dims[i % 6][0],
                   .n_rot = dims[i % 6][1],
                   .heads = 1 + i % 4,
                   .rows = rows[i / 12],
                   .pairs = i / 6 % 2 ? MR_ROPE_HALVES : MR_ROPE_INTERLEAVED};
        p.rope_first = i % 3 == 2 ? p.head_dim - p.n_rot : 0;
        expect_same("rope", build_rope, NULL, &p);
    }
}

static int32_t build_embed(scene *s, const shape *p) {
    int32_t ids[64];
    for (int32_t i = 0; i < p->rows; i++)
        ids[i] = i == 0 ? p->n - 1 : (int32_t)(rng_next(&s->r) % (uint32_t)p->n);
    int32_t table = scene_matrix(s, p->type, p->k, p->n, MR_STORAGE_FILE);
    return mr_graph_embed(s->g, table, scene_ints(s, ids, MR_ROWS_STEP));
}

void test_embed(void **state) {
    (void)state;
    for (int32_t type = 0; type < MR_TYPE_FILE_COUNT; type++)
        for (int32_t rows = 1; rows < 40 && is_weight(type); rows += 19)
            expect_same("embed", build_embed, NULL, &(shape){.type = (mr_type)type, .k = 512, .n = 37, .rows = rows});
}

/* --- Attention --------------------------------------------------------------------------------------------------- */

enum { MAX_ROWS = 640, SEQUENCES = 2 };

/* Rows of two sequences in turn, at positions from first on; blocks of a sequence stand in a mixed order. */
typedef struct row_ids {
    int32_t seq[MAX_ROWS], position[MAX_ROWS], slot[MAX_ROWS];
} row_ids;

static int32_t blocks_each(const shape *p) {
    return (p->length + p->rows + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
}

static int32_t block_at(const shape *p, int32_t seq, int32_t i) {
    int32_t n = blocks_each(p);
    return seq + SEQUENCES * (n - 1 - i);
}

static void number_rows(const shape *p, int32_t first, row_ids *out) {
    assert_true(p->rows <= MAX_ROWS);
    for (int32_t i = 0; i < p->rows; i++) {
        out->seq[i] = i % SEQUENCES;
        out->position[i] = first + i / SEQUENCES;
        out->slot[i] =
            block_at(p, out->seq[i], out->position[i] / MR_KV_BLOCK) * MR_KV_BLOCK + out->position[i] % MR_KV_BLOCK;
    }
}

/* Ids of the inputs that change from run to run: they come first. */
enum { IN_SLOTS, IN_SEQ, IN_POSITION, IN_Q, IN_K, IN_V };

static int32_t build_attention(scene *s, const shape *p) {
    static row_ids rows;
    static int32_t table[SEQUENCES * 64];
    int32_t v_dim = p->v_dim ? p->v_dim : p->head_dim;
    mr_kv_desc kv = {.n_layers = 1,
                     .n_blocks = SEQUENCES * blocks_each(p),
                     .shapes = &(mr_kv_shape){p->kv_heads, p->head_dim, v_dim},
                     .type = p->type};
    mr_tensor k, v, t;
    assert_int_equal(mr_kv_layer_describe(&kv, 0, &k, &v, NULL), MR_OK);
    assert_true(mr_tensor_init(&t, "block_table", MR_TYPE_I32, 64, SEQUENCES, MR_STORAGE_STATE, MR_ROWS_FIXED));
    assert_true(blocks_each(p) <= 64 && t.bytes == sizeof table);
    for (int32_t seq = 0; seq < SEQUENCES; seq++)
        for (int32_t i = 0; i < blocks_each(p); i++)
            table[seq * 64 + i] = block_at(p, seq, i);
    number_rows(p, 0, &rows);
    mr_attention_desc d = {.n_heads = p->heads,
                           .n_kv_heads = p->kv_heads,
                           .k_dim = p->head_dim,
                           .v_dim = v_dim,
                           .scale = 0.2f,
                           .soft_cap = p->soft_cap,
                           .temperature = p->temperature,
                           .window = p->window,
                           .slots = scene_ints(s, rows.slot, MR_ROWS_STEP),
                           .row_seq = scene_ints(s, rows.seq, MR_ROWS_STEP),
                           .row_position = scene_ints(s, rows.position, MR_ROWS_STEP)};
    int32_t q = scene_floats(s, p->heads * p->head_dim, MR_ROWS_STEP);
    int32_t keys = scene_floats(s, p->kv_heads * p->head_dim, MR_ROWS_STEP);
    int32_t data = scene_floats(s, p->kv_heads == 1 ? v_dim + 3 : p->kv_heads * v_dim, MR_ROWS_STEP);
    d.k_state = scene_state(s, &k, NULL);
    d.v_state = scene_state(s, &v, NULL);
    d.block_table = scene_state(s, &t, table);
    d.sinks = p->sinks ? scene_vector(s, p->heads) : NONE;
    if (p->n_rot > 0) { /* the keys turn on their way into the store */
        int32_t turns = mr_graph_rope_table(s->g, scene_angles(s, p->n_rot / 2), d.row_position, 1.0f);
        mr_rope_desc rope = {.head_dim = p->head_dim, .first = p->rope_first, .n_rot = p->n_rot, .pairs = p->pairs};
        keys = mr_graph_rope(s->g, keys, turns, &rope);
    }
    return mr_graph_attention(s->g, q, keys, data, &d);
}

/* The next rows of the sequences: they see those of the first run. */
static void go_on(scene *s, const shape *p) {
    static row_ids rows;
    number_rows(p, p->length, &rows);
    scene_refill(s, s->inputs[IN_SLOTS].id, rows.slot);
    scene_refill(s, s->inputs[IN_SEQ].id, rows.seq);
    scene_refill(s, s->inputs[IN_POSITION].id, rows.position);
    for (int i = IN_Q; i <= IN_V; i++)
        scene_refill(s, s->inputs[i].id, NULL);
}

void test_attention(void **state) {
    (void)state;
    static const int32_t dims[] = {16, 64, 80, 128, 256, 40, 10}, rows[] = {1, 2, 6, 33, 70};
    static const mr_type types[] = {MR_TYPE_F16, MR_TYPE_F32, MR_TYPE_Q8_0};
    for (int i = 0; i < 30; i++) {
        shape p = {.type = types[i % 3],
                   .head_dim = dims[i % 7],
                   .kv_heads = 1 + i % 3,
                   .rows = rows[i / 6],
                   .window = i % 4 == 1 ? 5 + i : 0,
                   .soft_cap = i % 5 == 2 ? 3.0f : 0.0f,
                   .temperature = {0.2f, i % 7 == 3 ? 4 : 0},
                   .sinks = i % 4 == 2,
                   .n_rot = i % 2 ? 10 : 0,
                   .pairs = i % 4 == 1 ? MR_ROPE_HALVES : MR_ROPE_INTERLEAVED};
        if (p.type == MR_TYPE_Q8_0)
            p.head_dim = 64 << i % 3;
        p.heads = p.kv_heads * (1 + i % 4);
        p.length = (p.rows + SEQUENCES - 1) / SEQUENCES;
        expect_same("attention", build_attention, go_on, &p);
    }
    /* Longer than a partition. */
    shape p = {.type = MR_TYPE_F16, .head_dim = 32, .kv_heads = 1, .heads = 2, .rows = MAX_ROWS, .length = 320};
    expect_same("attention", build_attention, go_on, &p);
    /* Values of another width, and more query heads than a call takes at a time. */
    for (int i = 0; i < 9; i++) {
        shape q = {.type = types[i % 3], .head_dim = 576, .v_dim = 512, .kv_heads = 1, .heads = i % 2 ? 16 : 30};
        if (i >= 6)
            q = (shape){.type = types[i % 3], .head_dim = 96, .v_dim = 64, .kv_heads = 2, .heads = 4};
        q.rows = rows[i % 5];
        q.n_rot = i % 2 ? 64 : 0;
        q.rope_first = i % 2 ? q.head_dim - 64 : 0;
        q.length = (q.rows + SEQUENCES - 1) / SEQUENCES;
        expect_same("attention", build_attention, go_on, &q);
    }
}
