/* Shapes that do not fit, ops that a backend does not run, and failed allocations: each gives one clear status. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"
#include "tests/unit/engine/graph/test_graph_support.h"

/* --- Shapes ------------------------------------------------------------------------------------------------------ */

static int32_t norm_that_does_not_divide(mr_graph *g) {
    return mr_graph_rms_norm(g, add_rows(g), add_vector(g, WIDTH - 1), 1e-5f);
}
static int32_t norm_of_no_tensor(mr_graph *g) {
    return mr_graph_rms_norm(g, 17, add_vector(g, WIDTH), 1e-5f);
}
static int32_t norm_of_ids(mr_graph *g) {
    int32_t ids = mr_graph_input(g, "ids", MR_TYPE_I32, 1, MR_ROWS_STEP);
    return mr_graph_rms_norm(g, ids, add_vector(g, 1), 1e-5f);
}
static int32_t matmul_of_other_columns(mr_graph *g) {
    return mr_graph_matmul(g, add_weight(g, MR_TYPE_F32, WIDTH + 1, 8), add_rows(g), NONE, NONE);
}
static int32_t matmul_by_activations(mr_graph *g) {
    return mr_graph_matmul(g, add_rows(g), add_rows(g), NONE, NONE);
}
static int32_t matmul_with_short_bias(mr_graph *g) {
    return mr_graph_matmul(g, add_weight(g, MR_TYPE_F32, WIDTH, 8), add_rows(g), add_vector(g, 7), NONE);
}
static int32_t matmul_with_short_add(mr_graph *g) {
    int32_t x = add_rows(g);
    return mr_graph_matmul(g, add_weight(g, MR_TYPE_F32, WIDTH, 8), x, NONE, x);
}
/* The rows that want logits beside all rows. */
static int32_t matmul_with_add_of_other_rows(mr_graph *g) {
    int32_t few = mr_graph_input(g, "few", MR_TYPE_F32, 8, MR_ROWS_OUT);
    return mr_graph_matmul(g, add_weight(g, MR_TYPE_F32, WIDTH, 8), add_rows(g), NONE, few);
}
static int32_t quantized_row_of_40(mr_graph *g) {
    int32_t x = mr_graph_input(g, "narrow", MR_TYPE_F32, 40, MR_ROWS_STEP);
    mr_tensor w;
    /* A Q8_0 weight of 40 columns cannot be created. A weight that claims 40 columns is refused with its
     * activations. */
    assert_true(mr_tensor_init(&w, "weight", MR_TYPE_Q8_0, 64, 8, MR_STORAGE_WEIGHT, MR_ROWS_FIXED));
    w.ne[0] = 40;
    return mr_graph_matmul(g, mr_graph_use(g, &w), x, NONE, NONE);
}
static int32_t rope(mr_graph *g, int32_t columns, mr_row_count rows, int32_t head_dim, int32_t n_rot) {
    int32_t table = mr_graph_input(g, "turns", MR_TYPE_F32, n_rot > 0 ? n_rot : 1, rows);
    int32_t x = mr_graph_input(g, "x", MR_TYPE_F32, columns, MR_ROWS_STEP);
    return mr_graph_rope(g, x, table, &(mr_rope_desc){.head_dim = head_dim, .n_rot = n_rot});
}
static int32_t rope_wider_than_the_head(mr_graph *g) {
    return rope(g, 64, MR_ROWS_STEP, 16, 18);
}
static int32_t rope_of_odd_width(mr_graph *g) {
    return rope(g, 64, MR_ROWS_STEP, 16, 15);
}
static int32_t rope_of_nothing(mr_graph *g) {
    return rope(g, 64, MR_ROWS_STEP, 0, 0);
}
static int32_t rope_of_a_broken_head(mr_graph *g) {
    return rope(g, 60, MR_ROWS_STEP, 16, 16);
}
static int32_t rope_by_a_table_of_other_rows(mr_graph *g) {
    return rope(g, 64, MR_ROWS_OUT, 16, 16);
}
static int32_t add_of_other_columns(mr_graph *g) {
    return mr_graph_add(g, add_rows(g), mr_graph_input(g, "y", MR_TYPE_F32, WIDTH / 2, MR_ROWS_STEP));
}
static int32_t add_of_other_rows(mr_graph *g) {
    return silu_mul(g, add_rows(g), mr_graph_input(g, "y", MR_TYPE_F32, WIDTH, MR_ROWS_OUT));
}
static int32_t glu_of_no_kind(mr_graph *g) {
    return mr_graph_glu(g, add_rows(g), add_rows(g), (mr_glu){.kind = MR_GLU_KINDS});
}
static int32_t glu_with_a_limit_below_zero(mr_graph *g) {
    return mr_graph_glu(g, add_rows(g), add_rows(g), (mr_glu){.limit = -1.0f});
}
static int32_t glu_with_an_infinite_limit(mr_graph *g) {
    return mr_graph_glu(g, add_rows(g), add_rows(g), (mr_glu){.limit = INFINITY});
}
static int32_t add_gated_by_rows(mr_graph *g) {
    return mr_graph_add_gated(g, add_rows(g), add_rows(g), add_rows(g));
}
static int32_t add_gated_by_other_rows(mr_graph *g) {
    int32_t gate = mr_graph_input(g, "gate", MR_TYPE_F32, 1, MR_ROWS_OUT);
    return mr_graph_add_gated(g, add_rows(g), add_rows(g), gate);
}
static int32_t scale_by_infinity(mr_graph *g) {
    return mr_graph_scale(g, add_rows(g), -INFINITY);
}
static int32_t scale_of_ids(mr_graph *g) {
    return mr_graph_scale(g, mr_graph_input(g, "ids", MR_TYPE_I32, 1, MR_ROWS_STEP), 2.0f);
}
static int32_t soft_cap_of_zero(mr_graph *g) {
    return mr_graph_soft_cap(g, add_rows(g), 0.0f);
}
static int32_t soft_cap_that_is_no_number(mr_graph *g) {
    return mr_graph_soft_cap(g, add_rows(g), NAN);
}
static int32_t take_by_floats(mr_graph *g) {
    return mr_graph_take_rows(g, add_rows(g), mr_graph_input(g, "rows", MR_TYPE_F32, 1, MR_ROWS_OUT));
}
static int32_t take_by_all_rows(mr_graph *g) {
    return mr_graph_take_rows(g, add_rows(g), mr_graph_input(g, "rows", MR_TYPE_I32, 1, MR_ROWS_STEP));
}
static int32_t embed_without_table(mr_graph *g) {
    return mr_graph_embed(g, NONE, mr_graph_input(g, "ids", MR_TYPE_I32, 1, MR_ROWS_STEP));
}
static int32_t table_of_one_row(mr_graph *g) {
    return mr_graph_rope_table(g, add_vector(g, 8), mr_graph_input(g, "p", MR_TYPE_I32, 1, MR_ROWS_STEP), 1.0f);
}
static int32_t output_of_an_input(mr_graph *g) {
    mr_graph_output(g, add_rows(g));
    return NONE;
}
static int32_t output_of_nothing(mr_graph *g) {
    mr_graph_output(g, 99);
    return NONE;
}
static int32_t input_without_columns(mr_graph *g) {
    return mr_graph_input(g, "x", MR_TYPE_F32, 0, MR_ROWS_STEP);
}

/* Attention with one field of its description spoilt. */
typedef void spoil_fn(mr_attention_desc *d, int32_t x);
static int32_t attention_with(mr_graph *g, spoil_fn *spoil) {
    layer_inputs in = add_layer_inputs(g);
    int32_t q = add_rows(g), k = mr_graph_input(g, "k", MR_TYPE_F32, KV_WIDTH, MR_ROWS_STEP);
    spoil(&in.attention, q);
    return mr_graph_attention(g, q, k, k, &in.attention);
}
static void spoil_heads(mr_attention_desc *d, int32_t x) {
    (void)x;
    d->n_heads = 2;
    d->k_dim = d->v_dim = 32; /* the widths fit q, but not k */
}
static void spoil_kv_heads(mr_attention_desc *d, int32_t x) {
    (void)x;
    d->n_heads = 1;
    d->n_kv_heads = 2;
    d->k_dim = d->v_dim = 0;
}
static void spoil_state(mr_attention_desc *d, int32_t x) {
    (void)x;
    d->k_state = NONE;
}
static void spoil_table(mr_attention_desc *d, int32_t x) {
    d->block_table = x;
}
static void spoil_slots(mr_attention_desc *d, int32_t x) {
    d->slots = x;
}
static void spoil_row_seq(mr_attention_desc *d, int32_t x) {
    (void)x;
    d->row_seq = NONE;
}
static void spoil_temperature(mr_attention_desc *d, int32_t x) {
    (void)x;
    d->temperature = (mr_temperature){INFINITY, 16};
}
static int32_t attention_of_endless_temperature(mr_graph *g) {
    return attention_with(g, spoil_temperature);
}
static int32_t attention_of_other_heads(mr_graph *g) {
    return attention_with(g, spoil_heads);
}
static int32_t attention_of_no_heads(mr_graph *g) {
    return attention_with(g, spoil_kv_heads);
}
static int32_t attention_without_state(mr_graph *g) {
    return attention_with(g, spoil_state);
}
static int32_t attention_without_table(mr_graph *g) {
    return attention_with(g, spoil_table);
}
static int32_t attention_without_slots(mr_graph *g) {
    return attention_with(g, spoil_slots);
}
static int32_t attention_without_sequences(mr_graph *g) {
    return attention_with(g, spoil_row_seq);
}

/* x of WIDTH, as two heads. */
static int32_t heads_with(mr_graph *g, int32_t columns, int32_t rows, int32_t n_heads) {
    return mr_graph_head_matmul(g, add_weight(g, MR_TYPE_F32, columns, rows), add_rows(g), n_heads);
}
static int32_t heads_narrower_than_their_matrices(mr_graph *g) {
    return heads_with(g, WIDTH / 2 + 1, 6, 2);
}
static int32_t heads_short_of_a_row(mr_graph *g) {
    return heads_with(g, WIDTH / 2, 7, 2);
}
static int32_t heads_that_do_not_divide(mr_graph *g) {
    return heads_with(g, 1, 3 * WIDTH, WIDTH + 1);
}
static int32_t no_heads(mr_graph *g) {
    return heads_with(g, WIDTH, 6, 0);
}
static int32_t heads_by_activations(mr_graph *g) {
    int32_t x = add_rows(g);
    return mr_graph_head_matmul(g, x, x, 1);
}
static int32_t norm_wider_than_its_columns(mr_graph *g) {
    return mr_graph_rms_norm_first(g, add_rows(g), add_vector(g, WIDTH + 1), 1e-5f);
}
static int32_t rope_behind_the_head(mr_graph *g) {
    int32_t table = mr_graph_input(g, "table", MR_TYPE_F32, 4, MR_ROWS_STEP);
    return mr_graph_rope(g, add_rows(g), table, &(mr_rope_desc){.head_dim = WIDTH, .n_rot = 4, .first = WIDTH - 3});
}
static int32_t attention_with_narrow_values(mr_graph *g) {
    layer_inputs in = add_layer_inputs(g);
    int32_t q = add_rows(g), k = mr_graph_input(g, "k", MR_TYPE_F32, WIDTH, MR_ROWS_STEP);
    in.attention.n_heads = in.attention.n_kv_heads = 1;
    in.attention.k_dim = WIDTH;
    in.attention.v_dim = WIDTH + 1;
    return mr_graph_attention(g, q, k, k, &in.attention);
}

/* Experts of width 8, with one field of their description spoilt. */
static mr_experts_desc good_experts(mr_graph *g) {
    return (mr_experts_desc){.n = 4,
                             .n_used = 2,
                             .router = add_weight(g, MR_TYPE_F32, WIDTH, 4),
                             .gate = add_weight(g, MR_TYPE_F32, WIDTH, 32),
                             .up = add_weight(g, MR_TYPE_F32, WIDTH, 32),
                             .down = add_weight(g, MR_TYPE_F32, 8, 4 * WIDTH),
                             .shared = MR_NO_TENSOR};
}
static int32_t experts_shared_too_wide(mr_graph *g) {
    mr_experts_desc desc = good_experts(g);
    int32_t x = add_rows(g);
    desc.shared = mr_graph_input(g, "shared", MR_TYPE_F32, WIDTH / 2, MR_ROWS_STEP);
    return mr_graph_experts(g, x, x, &desc);
}
static int32_t experts_used_too_many(mr_graph *g) {
    mr_experts_desc desc = good_experts(g);
    int32_t x = add_rows(g);
    desc.n_used = 5;
    return mr_graph_experts(g, x, x, &desc);
}
static int32_t experts_used_otherwise_in_a_later_layer(mr_graph *g) {
    mr_experts_desc desc = good_experts(g);
    int32_t x = add_rows(g), y = mr_graph_experts(g, x, x, &desc);
    assert_int_not_equal(y, NONE);
    desc.n_used = 1;
    return mr_graph_experts(g, y, y, &desc);
}
static int32_t experts_routed(mr_graph *g, mr_routing routing) {
    mr_experts_desc desc = good_experts(g);
    int32_t x = add_rows(g);
    desc.routing = routing;
    return mr_graph_experts(g, x, x, &desc);
}
static int32_t experts_of_no_score(mr_graph *g) {
    return experts_routed(g, (mr_routing){.score = MR_ROUTE_SCORES});
}
static int32_t experts_with_a_scale_that_is_no_number(mr_graph *g) {
    return experts_routed(g, (mr_routing){.scale = NAN});
}
static int32_t experts_in_three_groups(mr_graph *g) {
    return experts_routed(g, (mr_routing){.n_groups = 3, .n_groups_used = 2, .n_group_best = 1});
}
static int32_t experts_in_too_few_groups(mr_graph *g) {
    return experts_routed(g, (mr_routing){.n_groups = 4, .n_groups_used = 1, .n_group_best = 1});
}
static int32_t experts_in_too_many_groups(mr_graph *g) {
    return experts_routed(g, (mr_routing){.n_groups = 2, .n_groups_used = 3, .n_group_best = 1});
}
static int32_t experts_in_groups_of_one(mr_graph *g) {
    return experts_routed(g, (mr_routing){.n_groups = 4, .n_groups_used = 2, .n_group_best = 2});
}
static int32_t experts_in_groups_without_score(mr_graph *g) {
    return experts_routed(g, (mr_routing){.n_groups = 2, .n_groups_used = 1});
}
static int32_t experts_with_a_short_bias(mr_graph *g) {
    mr_experts_desc desc = good_experts(g);
    int32_t x = add_rows(g);
    desc.biases = &(mr_expert_biases){NONE, add_vector(g, 3), NONE, NONE, NONE};
    return mr_graph_experts(g, x, x, &desc);
}
static int32_t experts_with_one_bias(mr_graph *g) {
    mr_experts_desc desc = good_experts(g);
    int32_t x = add_rows(g);
    desc.biases = &(mr_expert_biases){NONE, NONE, NONE, NONE, add_vector(g, WIDTH)};
    return mr_graph_experts(g, x, x, &desc);
}
static int32_t experts_of_other_rows(mr_graph *g) {
    mr_experts_desc desc = good_experts(g);
    int32_t few = mr_graph_input(g, "few", MR_TYPE_F32, WIDTH, MR_ROWS_OUT);
    return mr_graph_experts(g, few, few, &desc);
}
static int32_t experts_and_a_router_of_others(mr_graph *g) {
    mr_experts_desc desc = good_experts(g);
    int32_t x = add_rows(g);
    desc.router = add_weight(g, MR_TYPE_F32, WIDTH, 5);
    return mr_graph_experts(g, x, x, &desc);
}
static int32_t experts_short_of_a_row(mr_graph *g) {
    mr_experts_desc desc = good_experts(g);
    int32_t x = add_rows(g);
    desc.up = add_weight(g, MR_TYPE_F32, WIDTH, 31);
    return mr_graph_experts(g, x, x, &desc);
}
static int32_t experts_of_two_widths(mr_graph *g) {
    mr_experts_desc desc = good_experts(g);
    int32_t x = add_rows(g);
    desc.up = add_weight(g, MR_TYPE_F32, WIDTH, 16);
    return mr_graph_experts(g, x, x, &desc);
}
static int32_t experts_with_a_narrow_result(mr_graph *g) {
    mr_experts_desc desc = good_experts(g);
    int32_t x = add_rows(g);
    desc.down = add_weight(g, MR_TYPE_F32, 8, 4 * WIDTH - 4);
    return mr_graph_experts(g, x, x, &desc);
}

static const struct {
    int32_t (*build)(mr_graph *g);
    const char *text;
} BAD[] = {
    {norm_that_does_not_divide, "rms_norm"},
    {norm_of_no_tensor, "x of rms_norm is no tensor"},
    {norm_wider_than_its_columns, "rms_norm: the columns of x do not fit"},
    {heads_narrower_than_their_matrices, "head_matmul: w needs a matrix for each head"},
    {heads_short_of_a_row, "head_matmul: w needs a matrix for each head"},
    {heads_that_do_not_divide, "head_matmul: w needs a matrix for each head"},
    {no_heads, "head_matmul: w needs a matrix for each head"},
    {heads_by_activations, "head_matmul: w is no weight"},
    {rope_behind_the_head, "rope: n_rot, head size"},
    {attention_with_narrow_values, "v has fewer columns"},
    {norm_of_ids, "x of rms_norm: tensor 'ids' is I32"},
    {matmul_of_other_columns, "matmul"},
    {matmul_by_activations, "matmul: w is no weight"},
    {matmul_with_short_bias, "bias of matmul: tensor 'vector' is F32 with 7 columns, wanted F32 with 8"},
    {matmul_with_short_add, "add of matmul"},
    {matmul_with_add_of_other_rows, "add of matmul: tensor 'few' has other rows than 'x'"},
    {quantized_row_of_40, "quantize"},
    {rope_wider_than_the_head, "rope"},
    {rope_of_odd_width, "rope"},
    {rope_of_nothing, "rope"},
    {rope_of_a_broken_head, "rope"},
    {rope_by_a_table_of_other_rows, "table of rope"},
    {add_of_other_columns, "add: tensor 'y'"},
    {add_of_other_rows, "glu: tensor 'y'"},
    {glu_of_no_kind, "glu: an unknown kind"},
    {glu_with_a_limit_below_zero, "glu: an unknown kind, or a limit"},
    {glu_with_an_infinite_limit, "glu: an unknown kind, or a limit"},
    {add_gated_by_rows, "gate of add_gated"},
    {add_gated_by_other_rows, "gate of add_gated: tensor 'gate' has other rows than"},
    {scale_by_infinity, "scale: the factor"},
    {scale_of_ids, "scale: tensor 'ids' is I32"},
    {soft_cap_of_zero, "soft_cap: the cap"},
    {soft_cap_that_is_no_number, "soft_cap: the cap"},
    {take_by_floats, "rows of take_rows"},
    {take_by_all_rows, "take_rows"},
    {embed_without_table, "table of embed"},
    {table_of_one_row, "rope_table: angles"},
    {output_of_an_input, "output"},
    {output_of_nothing, "output"},
    {input_without_columns, "shape"},
    {attention_of_other_heads, "k of attention"},
    {attention_of_no_heads, "attention"},
    {attention_of_endless_temperature, "attention: a temperature"},
    {attention_without_state, "attention"},
    {attention_without_table, "attention"},
    {attention_without_slots, "slots of attention"},
    {attention_without_sequences, "row_seq of attention"},
    {experts_shared_too_wide, "shared expert"},
    {experts_used_too_many, "experts: a wrong number"},
    {experts_used_otherwise_in_a_later_layer, "experts: a wrong number"},
    {experts_of_no_score, "experts: the kind of scores"},
    {experts_with_a_scale_that_is_no_number, "experts: the kind of scores, a scale"},
    {experts_in_three_groups, "a number of groups is wrong"},
    {experts_in_too_few_groups, "a number of groups is wrong"},
    {experts_in_too_many_groups, "a number of groups is wrong"},
    {experts_in_groups_of_one, "a number of groups is wrong"},
    {experts_in_groups_without_score, "a number of groups is wrong"},
    {experts_with_a_short_bias, "bias of the choice of experts: tensor 'vector'"},
    {experts_with_one_bias, "experts: not a bias for each"},
    {experts_of_other_rows, "experts: x"},
    {experts_and_a_router_of_others, "logits of experts"},
    {experts_short_of_a_row, "experts: w"},
    {experts_of_two_widths, "glu"},
    {experts_with_a_narrow_result, "result of experts"},
};

/* The first error stays: what follows adds nothing and changes nothing, and finish reports it. */
static void test_bad_shapes_are_one_sticky_error(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        fake_backend be = fake_backend_make();
        mr_graph *g = graph_make(4, 2);
        mr_graph_stats stats = {.n_nodes = -7};
        mr_err err = {0};
        if (BAD[i].build(g) != NONE)
            fail_msg("case %zu (%s) was accepted", i, BAD[i].text);
        int32_t n_before, n_after;
        mr_graph_nodes(g, &n_before);
        assert_int_equal(add_vector(g, 3), NONE);
        assert_int_equal(add_rows(g), NONE);
        assert_int_equal(mr_graph_add(g, 0, 0), NONE);
        mr_graph_output(g, 0);
        mr_graph_nodes(g, &n_after);
        assert_int_equal(n_after, n_before);
        mr_status status = mr_graph_finish(g, &(mr_backends){.at = {&be.base}, .n = 1}, &stats, &err);
        if (status != MR_E_INVALID || !strstr(err.text, BAD[i].text))
            fail_msg("case %zu: %s: '%s', expected '%s'", i, mr_status_name(status), err.text, BAD[i].text);
        assert_int_equal(stats.n_nodes, -7);
        mr_graph_destroy(g);
    }
}

static void test_a_graph_needs_rows(void **state) {
    (void)state;
    mr_graph *g = NULL;
    mr_err err = {0};
    assert_int_equal(mr_graph_create(0, 1, &g, &err), MR_E_INVALID);
    assert_int_equal(mr_graph_create(1, 0, &g, &err), MR_E_INVALID);
    assert_int_equal(mr_graph_create(-3, 1, &g, &err), MR_E_INVALID);
    assert_null(g);
    mr_graph_destroy(NULL);
}

static void test_a_graph_without_nodes(void **state) {
    (void)state;
    fake_backend be = fake_backend_make();
    mr_graph *g = graph_make(4, 2);
    add_rows(g);
    mr_graph_stats stats = finish_ok(g, &be);
    assert_int_equal(stats.n_nodes, 0);
    assert_int_equal(stats.n_groups, 0);
    mr_graph_destroy(g);
}

/* --- What a backend does not do ---------------------------------------------------------------------------------- */

static void test_an_unsupported_node_is_named(void **state) {
    (void)state;
    static const mr_op ops[] = {MR_OP_RMS_NORM, MR_OP_MATMUL,   MR_OP_ROPE, MR_OP_ROPE_TABLE,
                                MR_OP_KV_WRITE, MR_OP_QUANTIZE, MR_OP_GLU,  MR_OP_ATTENTION};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        fake_backend be = fake_backend_make();
        be.refused = ops[i];
        mr_graph *g = graph_make(4, 2);
        layer_inputs in = add_layer_inputs(g);
        mr_graph_output(g, add_layer(g, &in, MR_TYPE_Q8_0, add_rows(g)));
        mr_graph_stats stats;
        mr_err err = {0};
        mr_status status = mr_graph_finish(g, &(mr_backends){.at = {&be.base}, .n = 1}, &stats, &err);
        if (status != MR_E_UNSUPPORTED || !strstr(err.text, mr_op_name(ops[i])) || !strstr(err.text, "tensor '"))
            fail_msg("%s: %s: '%s'", mr_op_name(ops[i]), mr_status_name(status), err.text);
        mr_graph_destroy(g);
    }
}

/* Heads of 25 elements do not fit the kernels: the size is odd. The error says this. */
static void test_the_cpu_names_heads_that_do_not_fit(void **state) {
    (void)state;
    mr_backend *be = NULL;
    mr_err err = {0};
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &be, &err), &err);
    mr_graph *g = graph_make(4, 2);
    layer_inputs in = add_layer_inputs(g);
    in.attention.k_dim = in.attention.v_dim = 25;
    int32_t q = mr_graph_input(g, "q", MR_TYPE_F32, 25 * HEADS, MR_ROWS_STEP);
    int32_t k = mr_graph_input(g, "k", MR_TYPE_F32, 25 * KV_HEADS, MR_ROWS_STEP);
    mr_graph_attention(g, q, k, k, &in.attention);
    mr_graph_stats stats;
    expect_fails(mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, &err), MR_E_UNSUPPORTED, &err,
                 "heads of 25");
    mr_graph_destroy(g);
    mr_backend_destroy(be);
}

/* The scores of a row are on the stack. */
static void test_the_cpu_refuses_too_many_experts(void **state) {
    (void)state;
    for (int32_t n = 4096; n <= 4097; n++) {
        mr_backend *be = NULL;
        mr_err err = {0};
        expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &be, &err), &err);
        mr_graph *g = graph_make(4, 2);
        int32_t x = add_rows(g);
        mr_graph_experts(g, x, x,
                         &(mr_experts_desc){.n = n,
                                            .n_used = 2,
                                            .router = add_weight(g, MR_TYPE_F32, WIDTH, n),
                                            .gate = add_weight(g, MR_TYPE_F32, WIDTH, 8 * n),
                                            .up = add_weight(g, MR_TYPE_F32, WIDTH, 8 * n),
                                            .down = add_weight(g, MR_TYPE_F32, 8, n * WIDTH)});
        mr_graph_stats stats;
        mr_status status = mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, &err);
        if (n == 4096)
            expect_ok(status, &err);
        else
            expect_fails(status, MR_E_UNSUPPORTED, &err, "no backend runs route");
        mr_graph_destroy(g);
        mr_backend_destroy(be);
    }
}

/* --- Allocations that fail --------------------------------------------------------------------------------------- */

static mr_status build_and_place(mr_backend *be, mr_buffer *work, mr_graph **out, mr_err *err) {
    mr_graph_stats stats;
    mr_status status = mr_graph_create(4, 2, out, err);
    if (status != MR_OK)
        return status;
    layer_inputs in = add_layer_inputs(*out);
    int32_t x = add_rows(*out);
    for (int l = 0; l < 6; l++) /* more layers than the first capacity of the arrays */
        x = add_layer(*out, &in, l % 2 ? MR_TYPE_Q8_0 : MR_TYPE_F16, x);
    mr_graph_output(*out, x);
    status = mr_graph_finish(*out, &(mr_backends){.at = {be}, .n = 1}, &stats, err);
    return status == MR_OK ? mr_graph_place(*out, &work, err) : status;
}

static void test_failing_allocations(void **state) {
    (void)state;
    mr_backend *be = NULL;
    mr_buffer *work = NULL;
    mr_err err = {0};
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &be, &err), &err);
    expect_ok(be->ops->buffer_create(be, 1 << 20, &work, &err), &err);
    mr_status status = MR_E_NO_MEMORY;
    int n = 0;
    for (; status != MR_OK; n++) {
        mr_graph *g = NULL;
        assert_true(n < 100);
        err = (mr_err){0};
        mr_mem_fail_at(n);
        status = build_and_place(be, work, &g, &err);
        mr_mem_fail_at(-1);
        if (status != MR_OK && (status != MR_E_NO_MEMORY || !strstr(err.text, "no memory")))
            fail_msg("allocation %d: %s: '%s'", n, mr_status_name(status), err.text);
        mr_graph_destroy(g);
    }
    print_message("%d allocations\n", n - 1);
    assert_true(n > 8);
    be->ops->buffer_destroy(be, work);
    mr_backend_destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_shapes_are_one_sticky_error),
        cmocka_unit_test(test_a_graph_needs_rows),
        cmocka_unit_test(test_a_graph_without_nodes),
        cmocka_unit_test(test_an_unsupported_node_is_named),
        cmocka_unit_test(test_the_cpu_names_heads_that_do_not_fit),
        cmocka_unit_test(test_the_cpu_refuses_too_many_experts),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests_name("graph_build", tests, NULL, NULL);
}
