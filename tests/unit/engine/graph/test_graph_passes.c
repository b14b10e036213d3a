/* The results of the passes over a graph: which nodes can run at the same time, and which nodes write A8 themselves. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tests/support/test.h"

#include "tests/unit/engine/graph/test_graph_support.h"

/* Whether node b must come after node a, which stands before it: by a tensor, or by the store. */
static bool depends(const mr_node *b, const mr_node *a) {
    for (int k = 0; k < MR_MAX_INPUTS; k++) {
        if (b->in[k] == NONE)
            continue;
        if (b->in[k] == a->out)
            return true;
        if (a->op == MR_OP_KV_WRITE && (b->in[k] == a->in[3] || b->in[k] == a->in[4]))
            return true;
        bool writes = b->op == MR_OP_KV_WRITE && (k == 3 || k == 4);
        for (int j = 0; writes && j < MR_MAX_INPUTS; j++)
            if (a->in[j] == b->in[k])
                return true;
    }
    return false;
}

/* Every node comes in the first group that its dependencies allow, and nodes are sorted by group. */
static void check_groups(const mr_graph *g, mr_graph_stats stats) {
    int32_t n, last = 0;
    const mr_node *nodes = mr_graph_nodes(g, &n);
    for (int32_t i = 0; i < n; i++) {
        int32_t want = 0;
        for (int32_t j = 0; j < i; j++)
            if (depends(&nodes[i], &nodes[j]) && nodes[j].group + 1 > want)
                want = nodes[j].group + 1;
        for (int32_t j = i + 1; j < n; j++)
            assert_true(nodes[j].out == NONE || !depends(&nodes[i], &nodes[j]) || nodes[i].op == MR_OP_KV_WRITE);
        if (nodes[i].group != want)
            fail_msg("%s %d is in group %d, expected %d", mr_op_name(nodes[i].op), i, nodes[i].group, want);
        assert_true(nodes[i].group >= last && nodes[i].group <= last + 1);
        last = nodes[i].group;
    }
    assert_int_equal(stats.n_nodes, n);
    assert_int_equal(stats.n_groups, last + 1);
}

/* The nodes of that op, in order; at most four. */
static void find_nodes(const mr_graph *g, mr_op op, const mr_node *out[4]) {
    int32_t n, at = 0;
    const mr_node *nodes = mr_graph_nodes(g, &n);
    for (int32_t i = 0; i < n && at < 4; i++)
        if (nodes[i].op == op)
            out[at++] = &nodes[i];
}

static void test_a_layer_runs_in_groups(void **state) {
    (void)state;
    fake_backend be = fake_backend_make();
    mr_graph *g = graph_make(4, 2);
    layer_inputs in = add_layer_inputs(g);
    mr_graph_output(g, add_layer(g, &in, MR_TYPE_F32, add_rows(g)));
    mr_graph_stats stats = finish_ok(g, &be);
    check_groups(g, stats);
    const mr_node *turn[4], *write[4], *attention[4], *product[4], *gate[4];
    find_nodes(g, MR_OP_ROPE, turn);
    find_nodes(g, MR_OP_KV_WRITE, write);
    find_nodes(g, MR_OP_ATTENTION, attention);
    find_nodes(g, MR_OP_MATMUL, product);
    find_nodes(g, MR_OP_GATE_UP, gate);
    /* The groups: norm and table; q, k, v; RoPE of q, and KV write; attention; output; norm; gate and up; down. */
    assert_int_equal(stats.n_groups, 8);
    assert_int_equal(count_nodes(g, MR_OP_ROPE), 1);
    assert_int_equal(product[0]->group, product[1]->group);
    assert_int_equal(product[0]->group, product[2]->group);
    assert_int_equal(turn[0]->group, write[0]->group);
    assert_int_equal(attention[0]->group, write[0]->group + 1);
    assert_int_equal(maker_of(g, gate[0]->in[2])->op, MR_OP_RMS_NORM);
    mr_graph_destroy(g);
}

static void test_layers_follow_each_other(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_Q8_0};
    for (int t = 0; t < 2; t++) {
        fake_backend be = fake_backend_make();
        mr_graph *g = graph_make(4, 2);
        layer_inputs in = add_layer_inputs(g);
        int32_t x = add_rows(g);
        for (int l = 0; l < 5; l++)
            x = add_layer(g, &in, types[t], x);
        mr_graph_output(g, x);
        check_groups(g, finish_ok(g, &be));
        mr_graph_destroy(g);
    }
}

/* Two layers that share keys and values: the second write waits until the first attention has read them. */
static void test_a_write_waits_for_readers(void **state) {
    (void)state;
    fake_backend be = fake_backend_make();
    mr_graph *g = graph_make(4, 2);
    layer_inputs in = add_layer_inputs(g);
    int32_t q = add_rows(g), k = mr_graph_input(g, "k", MR_TYPE_F32, KV_WIDTH, MR_ROWS_STEP);
    int32_t a = mr_graph_attention(g, q, k, k, &in.attention);
    int32_t b = mr_graph_attention(g, q, k, k, &in.attention);
    mr_graph_output(g, a);
    mr_graph_output(g, b);
    check_groups(g, finish_ok(g, &be));
    const mr_node *write[4], *attention[4];
    find_nodes(g, MR_OP_KV_WRITE, write);
    find_nodes(g, MR_OP_ATTENTION, attention);
    assert_int_equal(attention[0]->group, write[0]->group + 1);
    assert_int_equal(write[1]->group, attention[0]->group + 1);
    assert_int_equal(attention[1]->group, write[1]->group + 1);
    mr_graph_destroy(g);
}

static void test_nodes_without_dependencies_are_one_group(void **state) {
    (void)state;
    fake_backend be = fake_backend_make();
    mr_graph *g = graph_make(4, 2);
    int32_t x = add_rows(g), y = add_rows(g);
    for (int i = 0; i < 70; i++) /* more than the first capacity of the array */
        mr_graph_output(g, mr_graph_add(g, x, y));
    mr_graph_stats stats = finish_ok(g, &be);
    assert_int_equal(stats.n_nodes, 70);
    assert_int_equal(stats.n_groups, 1);
    mr_graph_destroy(g);
}

/* --- Fusion ------------------------------------------------------------------------------------------------------ */

/* Builds a norm and what reads it. */
typedef struct fused_case {
    mr_type weight;    /* type of the weights of the products; 0: Q8_0 */
    bool float_reader; /* a product with float weights also reads the norm */
    bool bf16_reader;  /* a product with BF16 weights also reads the norm */
    bool output;       /* the norm is an output of the graph */
    mr_op refused_a8;
    bool fuses;
} fused_case;

static void check_fusion(const fused_case *c) {
    fake_backend be = fake_backend_make();
    be.refused_a8 = c->refused_a8;
    mr_type weight = c->weight ? c->weight : MR_TYPE_Q8_0, activation = weight == MR_TYPE_BF16 ? weight : MR_TYPE_A8;
    mr_graph *g = graph_make(4, 2);
    int32_t h = mr_graph_rms_norm(g, add_rows(g), add_vector(g, WIDTH), 1e-5f);
    int32_t y[3];
    for (int i = 0; i < 3; i++)
        y[i] = mr_graph_matmul(g, add_weight(g, weight, WIDTH, 8), h, NONE, NONE);
    if (c->bf16_reader)
        mr_graph_output(g, mr_graph_matmul(g, add_weight(g, MR_TYPE_BF16, WIDTH, 8), h, NONE, NONE));
    if (c->float_reader)
        mr_graph_output(g, mr_graph_matmul(g, add_weight(g, MR_TYPE_F16, WIDTH, 8), h, NONE, NONE));
    if (c->output)
        mr_graph_output(g, h);
    for (int i = 0; i < 3; i++)
        mr_graph_output(g, y[i]);
    check_groups(g, finish_ok(g, &be));
    const mr_node *norm[4] = {0};
    find_nodes(g, MR_OP_RMS_NORM, norm);
    assert_int_equal(mr_graph_tensor(g, norm[0]->out)->type, c->fuses ? activation : MR_TYPE_F32);
    assert_int_equal(count_nodes(g, MR_OP_QUANTIZE), c->fuses         ? 0
                                                     : c->bf16_reader ? 2
                                                                      : 1); /* one conversion for all three products */
    int32_t a8 = maker_of(g, y[0])->in[1];
    for (int i = 0; i < 3; i++) {
        const mr_node *product = maker_of(g, y[i]);
        assert_int_equal(product->in[1], a8);
        assert_int_equal(mr_graph_tensor(g, a8)->type, activation);
    }
    assert_int_equal(maker_of(g, a8)->op, c->fuses ? MR_OP_RMS_NORM : MR_OP_QUANTIZE);
    assert_ptr_equal(maker_of(g, h), c->fuses ? NULL : norm[0]);
    mr_graph_destroy(g);
}

static void test_a_norm_quantises_where_nobody_wants_floats(void **state) {
    (void)state;
    check_fusion(&(fused_case){.refused_a8 = MR_OP_COUNT, .fuses = true});
    check_fusion(&(fused_case){.refused_a8 = MR_OP_COUNT, .float_reader = true});
    check_fusion(&(fused_case){.refused_a8 = MR_OP_COUNT, .output = true});
    check_fusion(&(fused_case){.refused_a8 = MR_OP_RMS_NORM});
    check_fusion(&(fused_case){.refused_a8 = MR_OP_COUNT, .bf16_reader = true});
    check_fusion(&(fused_case){.refused_a8 = MR_OP_COUNT, .weight = MR_TYPE_BF16, .fuses = true});
    check_fusion(&(fused_case){.refused_a8 = MR_OP_COUNT, .weight = MR_TYPE_BF16, .float_reader = true});
}

/* A backend that multiplies floats only gets the norm's own rows, and nothing is quantised. */
static void test_products_of_floats_where_the_backend_wants_them(void **state) {
    (void)state;
    fake_backend be = fake_backend_make();
    be.refuses_rounded = true;
    mr_graph *g = graph_make(4, 2);
    int32_t h = mr_graph_rms_norm(g, add_rows(g), add_vector(g, WIDTH), 1e-5f);
    int32_t y[] = {mr_graph_matmul(g, add_weight(g, MR_TYPE_Q8_0, WIDTH, 8), h, NONE, NONE),
                   mr_graph_matmul(g, add_weight(g, MR_TYPE_BF16, WIDTH, 8), h, NONE, NONE),
                   mr_graph_matmul(g, add_weight(g, MR_TYPE_F16, WIDTH, 8), h, NONE, NONE)};
    for (int i = 0; i < 3; i++)
        mr_graph_output(g, y[i]);
    check_groups(g, finish_ok(g, &be));
    assert_int_equal(count_nodes(g, MR_OP_QUANTIZE), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(maker_of(g, y[i])->in[1], h);
    assert_int_equal(maker_of(g, h)->op, MR_OP_RMS_NORM);
    mr_graph_destroy(g);
}

/* Gates fuse. The results of attention and a plain input are quantised by separate nodes. */
static void test_what_fuses_in_a_layer(void **state) {
    (void)state;
    fake_backend be = fake_backend_make();
    mr_graph *g = graph_make(4, 2);
    layer_inputs in = add_layer_inputs(g);
    mr_graph_output(g, add_layer(g, &in, MR_TYPE_Q8_0, add_rows(g)));
    check_groups(g, finish_ok(g, &be));
    const mr_node *gate[4], *quantize[4];
    find_nodes(g, MR_OP_GATE_UP, gate);
    find_nodes(g, MR_OP_QUANTIZE, quantize);
    assert_int_equal(count_nodes(g, MR_OP_QUANTIZE), 1);
    assert_int_equal(maker_of(g, quantize[0]->in[0])->op, MR_OP_ATTENTION);
    assert_int_equal(mr_graph_tensor(g, gate[0]->out)->type, MR_TYPE_A8);
    mr_graph_destroy(g);
}

/* The KV write rotates keys if no other node reads the rotated keys and the backend supports it. */
static void check_turned_write(bool output, bool refused) {
    fake_backend be = fake_backend_make();
    be.refuses_turned_keys = refused;
    mr_graph *g = graph_make(4, 2);
    layer_inputs in = add_layer_inputs(g);
    const mr_rope_desc rope = {.head_dim = HEAD_DIM, .n_rot = 6, .pairs = MR_ROPE_HALVES};
    int32_t x = mr_graph_add(g, add_rows(g), add_rows(g));
    int32_t k = mr_graph_matmul(g, add_weight(g, MR_TYPE_F32, WIDTH, KV_WIDTH), x, NONE, NONE);
    int32_t table = mr_graph_input(g, "table", MR_TYPE_F32, 6, MR_ROWS_STEP);
    int32_t turned = mr_graph_rope(g, k, table, &rope);
    mr_graph_output(g, mr_graph_attention(g, x, turned, k, &in.attention));
    if (output)
        mr_graph_output(g, turned);
    check_groups(g, finish_ok(g, &be));
    const mr_node *write[4] = {0};
    find_nodes(g, MR_OP_KV_WRITE, write);
    bool fuses = !output && !refused;
    assert_int_equal(count_nodes(g, MR_OP_ROPE), !fuses);
    assert_int_equal(write[0]->in[0], fuses ? k : turned);
    assert_int_equal(write[0]->in[5], fuses ? table : NONE);
    assert_int_equal(write[0]->params.attention.n_rot, fuses ? 6 : 0);
    assert_int_equal(write[0]->params.attention.pairs, fuses ? MR_ROPE_HALVES : 0);
    mr_graph_destroy(g);
}

static void test_keys_turn_while_they_are_written(void **state) {
    (void)state;
    check_turned_write(false, false);
    check_turned_write(true, false);
    check_turned_write(false, true);
}

/* The last norm's rows are those that want logits: the A8 rows are too. */
static void test_a8_rows_are_those_of_the_floats(void **state) {
    (void)state;
    fake_backend be = fake_backend_make();
    mr_graph *g = graph_make(64, 2);
    int32_t rows = mr_graph_input(g, "out_rows", MR_TYPE_I32, 1, MR_ROWS_OUT);
    int32_t x = mr_graph_take_rows(g, add_rows(g), rows);
    x = mr_graph_rms_norm(g, x, add_vector(g, WIDTH), 1e-5f);
    x = mr_graph_matmul(g, add_weight(g, MR_TYPE_Q8_0, WIDTH, 100), x, NONE, NONE);
    mr_graph_output(g, x);
    finish_ok(g, &be);
    const mr_tensor *a8 = mr_graph_tensor(g, maker_of(g, x)->in[1]), *y = mr_graph_tensor(g, x);
    assert_int_equal(a8->row_count, MR_ROWS_OUT);
    assert_int_equal(a8->ne[1], 2);
    assert_int_equal(y->row_count, MR_ROWS_OUT);
    assert_int_equal(y->ne[0], 100);
    assert_int_equal(y->ne[1], 2);
    assert_int_equal(y->row_bytes, 448); /* padded to 64 */
    mr_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_layer_runs_in_groups),
        cmocka_unit_test(test_layers_follow_each_other),
        cmocka_unit_test(test_a_write_waits_for_readers),
        cmocka_unit_test(test_nodes_without_dependencies_are_one_group),
        cmocka_unit_test(test_a_norm_quantises_where_nobody_wants_floats),
        cmocka_unit_test(test_products_of_floats_where_the_backend_wants_them),
        cmocka_unit_test(test_what_fuses_in_a_layer),
        cmocka_unit_test(test_keys_turn_while_they_are_written),
        cmocka_unit_test(test_a8_rows_are_those_of_the_floats),
    };
    return cmocka_run_group_tests_name("graph_passes", tests, NULL, NULL);
}
