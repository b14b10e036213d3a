// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/engine/graph/test_graph_support.h"

#include "tests/support/test.h"

#include <string.h>

static void describe(const mr_backend *be, mr_device_info *out) {
    *out = (mr_device_info){.name = "fake", .alignment = ((const fake_backend *)be)->alignment};
}

static bool supports(const mr_backend *base, const mr_tensor *tensors, const mr_node *n) {
    const fake_backend *be = (const fake_backend *)base;
    bool a8 = n->out != NONE && tensors[n->out].type == MR_TYPE_A8;
    if (be->refuses_turned_keys && n->op == MR_OP_KV_WRITE && n->in[5] != NONE)
        return false;
    if (be->refuses_rounded && n->op == MR_OP_MATMUL && tensors[n->in[1]].type != MR_TYPE_F32)
        return false;
    if (n->op == MR_OP_GATE_UP && be->refused == MR_OP_GLU)
        return false;
    return n->op != be->refused && !(a8 && n->op == be->refused_a8);
}

static mr_status program_create(mr_backend *base, const mr_program_desc *desc, mr_program **out, mr_err *err) {
    (void)desc;
    (void)err;
    ((fake_backend *)base)->n_programs++;
    *out = (mr_program *)base;
    return MR_OK;
}

static void program_destroy(mr_backend *base, mr_program *program) {
    assert_ptr_equal(program, base);
    ((fake_backend *)base)->n_programs--;
}

fake_backend fake_backend_make(void) {
    static const mr_backend_ops ops = {
        .describe = describe,
        .supports = supports,
        .program_create = program_create,
        .program_destroy = program_destroy,
    };
    return (fake_backend){.base = {&ops}, .alignment = 64, .refused = MR_OP_COUNT, .refused_a8 = MR_OP_COUNT};
}

mr_graph *graph_make(int32_t max_rows, int32_t max_out_rows) {
    mr_graph *g = NULL;
    assert_int_equal(mr_graph_create(max_rows, max_out_rows, &g, NULL), MR_OK);
    return g;
}

static int32_t use(mr_graph *g, const char *name, mr_type type, int32_t columns, int32_t rows, mr_storage storage) {
    mr_tensor t;
    assert_true(mr_tensor_init(&t, name, type, columns, rows, storage, MR_ROWS_FIXED));
    return mr_graph_use(g, &t);
}

int32_t add_weight(mr_graph *g, mr_type type, int32_t columns, int32_t rows) {
    return use(g, "weight", type, columns, rows, MR_STORAGE_WEIGHT);
}

int32_t add_vector(mr_graph *g, int32_t n) {
    return use(g, "vector", MR_TYPE_F32, n, 1, MR_STORAGE_FILE);
}

int32_t add_state(mr_graph *g) {
    return use(g, "state", MR_TYPE_F16, KV_WIDTH * MR_KV_BLOCK, 8, MR_STORAGE_STATE);
}

int32_t add_table(mr_graph *g) {
    return use(g, "table", MR_TYPE_I32, 8, 2, MR_STORAGE_STATE);
}

int32_t add_rows(mr_graph *g) {
    return mr_graph_input(g, "x", MR_TYPE_F32, WIDTH, MR_ROWS_STEP);
}

layer_inputs add_layer_inputs(mr_graph *g) {
    layer_inputs in = {
        .attention = {.n_heads = HEADS,
                      .n_kv_heads = KV_HEADS,
                      .k_dim = HEAD_DIM,
                      .v_dim = HEAD_DIM,
                      .scale = 0.25f,
                      .k_state = add_state(g),
                      .v_state = add_state(g),
                      .slots = mr_graph_input(g, "slots", MR_TYPE_I32, 1, MR_ROWS_STEP),
                      .row_seq = mr_graph_input(g, "row_seq", MR_TYPE_I32, 1, MR_ROWS_STEP),
                      .block_table = add_table(g),
                      .sinks = NONE},
        .positions = mr_graph_input(g, "positions", MR_TYPE_I32, 1, MR_ROWS_STEP),
    };
    in.attention.row_position = in.positions;
    int32_t angles = use(g, "angles", MR_TYPE_F32, HEAD_DIM / 2, MR_ROPE_ROWS, MR_STORAGE_CONSTANT);
    in.rope_table = mr_graph_rope_table(g, angles, in.positions, 1.0f);
    return in;
}

int32_t add_layer(mr_graph *g, layer_inputs *in, mr_type weights, int32_t x) {
    const mr_rope_desc rope = {.head_dim = HEAD_DIM, .n_rot = HEAD_DIM, .pairs = MR_ROPE_HALVES};
    int32_t h = mr_graph_rms_norm(g, x, add_vector(g, WIDTH), 1e-5f);
    int32_t q = mr_graph_matmul(g, add_weight(g, weights, WIDTH, WIDTH), h, NONE, NONE);
    int32_t k = mr_graph_matmul(g, add_weight(g, weights, WIDTH, KV_WIDTH), h, NONE, NONE);
    int32_t v = mr_graph_matmul(g, add_weight(g, weights, WIDTH, KV_WIDTH), h, NONE, NONE);
    q = mr_graph_rope(g, q, in->rope_table, &rope);
    k = mr_graph_rope(g, k, in->rope_table, &rope);
    int32_t a = mr_graph_attention(g, q, k, v, &in->attention);
    x = mr_graph_matmul(g, add_weight(g, weights, WIDTH, WIDTH), a, NONE, x);
    h = mr_graph_rms_norm(g, x, add_vector(g, WIDTH), 1e-5f);
    int32_t gate = mr_graph_matmul(g, add_weight(g, weights, WIDTH, 2 * WIDTH), h, NONE, NONE);
    int32_t up = mr_graph_matmul(g, add_weight(g, weights, WIDTH, 2 * WIDTH), h, NONE, NONE);
    int32_t f = silu_mul(g, gate, up);
    in->attention.k_state = add_state(g);
    in->attention.v_state = add_state(g);
    return mr_graph_matmul(g, add_weight(g, weights, 2 * WIDTH, WIDTH), f, NONE, x);
}

mr_graph_stats finish_ok(mr_graph *g, fake_backend *be) {
    mr_err err = {0};
    mr_graph_stats stats = {0};
    if (mr_graph_finish(g, &(mr_backends){.at = {&be->base}, .n = 1}, &stats, &err) != MR_OK)
        fail_msg("finish: %s", err.text);
    return stats;
}

const mr_node *maker_of(const mr_graph *g, int32_t id) {
    int32_t n;
    const mr_node *nodes = mr_graph_nodes(g, &n);
    for (int32_t i = 0; i < n; i++)
        if (nodes[i].out == id)
            return &nodes[i];
    return NULL;
}

int count_nodes(const mr_graph *g, mr_op op) {
    int32_t n;
    const mr_node *nodes = mr_graph_nodes(g, &n);
    int count = 0;
    for (int32_t i = 0; i < n; i++)
        count += nodes[i].op == op;
    return count;
}
