/* The memory plan of random graphs in a simulated run. The run notes which tensor was written last to each part of
 * the work buffer, and finds every reader that would see the bytes of another tensor. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"
#include "tests/unit/engine/graph/test_graph_support.h"

enum { SEED = 7, N_GRAPHS = 400, MAX_INPUT_TENSORS = 16 };

/* --- The oracle -------------------------------------------------------------------------------------------------- */

typedef struct range {
    size_t from, to; /* in units of the alignment */
} range;

typedef struct simulation {
    const mr_graph *g;
    size_t unit, n_units;
    int32_t *owner; /* [n_units]: the tensor that was written to the unit last */
} simulation;

static bool is_work(const mr_tensor *t) {
    return t->storage == MR_STORAGE_WORK || t->storage == MR_STORAGE_INPUT || t->storage == MR_STORAGE_OUTPUT;
}

static range range_of(const simulation *s, int32_t id) {
    const mr_tensor *t = mr_graph_tensor(s->g, id);
    assert_int_equal(t->offset % s->unit, 0);
    range r = {t->offset / s->unit, (t->offset + t->bytes + s->unit - 1) / s->unit};
    assert_true(r.to <= s->n_units);
    return r;
}

static bool overlap(range a, range b) {
    return a.from < b.to && b.from < a.to;
}

static void write_tensor(simulation *s, int32_t id) {
    range r = range_of(s, id);
    for (size_t i = r.from; i < r.to; i++)
        s->owner[i] = id;
}

static void expect_intact(const simulation *s, int32_t id, const char *who) {
    range r = range_of(s, id);
    for (size_t i = r.from; i < r.to; i++)
        if (s->owner[i] != id)
            fail_msg("%s finds tensor %d in the place of tensor %d", who, s->owner[i], id);
}

/* The input that a kernel may overwrite with its result, element by element (backends/cpu/kernels.h). */
static int in_place_input(mr_op op) {
    switch (op) {
    case MR_OP_MATMUL:
        return 3;
    case MR_OP_EXPERT_SUM:
        return 2;
    case MR_OP_ROPE:
    case MR_OP_ADD:
    case MR_OP_ADD_GATED:
    case MR_OP_SCALE:
    case MR_OP_RELU:
    case MR_OP_SOFT_CAP:
    case MR_OP_GLU:
    case MR_OP_RMS_NORM:
        return 0;
    default:
        return -1;
    }
}

/* The result of n may lie over what node other of the same group reads only if it is n's own input, in place. */
static void check_write(const simulation *s, const mr_node *n, const mr_node *other) {
    const mr_tensor *out = mr_graph_tensor(s->g, n->out);
    range written = range_of(s, n->out);
    for (int k = 0; k < MR_MAX_INPUTS; k++) {
        if (other->in[k] == NONE || !is_work(mr_graph_tensor(s->g, other->in[k])))
            continue;
        if (!overlap(written, range_of(s, other->in[k])))
            continue;
        const mr_tensor *in = mr_graph_tensor(s->g, other->in[k]);
        bool in_place = n == other && k == in_place_input(n->op) && in->offset == out->offset &&
                        in->type == out->type && in->row_bytes == out->row_bytes && in->ne[1] == out->ne[1];
        if (!in_place)
            fail_msg("%s writes '%s' over '%s', which %s reads in the same group", mr_op_name(n->op), out->name,
                     in->name, mr_op_name(other->op));
    }
    if (n != other && other->out != NONE && overlap(written, range_of(s, other->out)))
        fail_msg("'%s' and '%s' of one group share memory", out->name, mr_graph_tensor(s->g, other->out)->name);
}

static void run_group(simulation *s, const mr_node *nodes, int32_t first, int32_t last) {
    for (int32_t i = first; i < last; i++)
        for (int k = 0; k < MR_MAX_INPUTS; k++)
            if (nodes[i].in[k] != NONE && is_work(mr_graph_tensor(s->g, nodes[i].in[k])))
                expect_intact(s, nodes[i].in[k], mr_op_name(nodes[i].op));
    for (int32_t i = first; i < last; i++)
        for (int32_t j = first; j < last; j++)
            if (nodes[i].out != NONE)
                check_write(s, &nodes[i], &nodes[j]);
    for (int32_t i = first; i < last; i++)
        if (nodes[i].out != NONE)
            write_tensor(s, nodes[i].out);
}

/* Runs the graph once in the mind. All inputs are written first; outputs must be there at the end. */
static void simulate(const mr_graph *g, const mr_graph_stats *stats, size_t unit, const int32_t *inputs, int n_inputs) {
    simulation s = {.g = g, .unit = unit, .n_units = stats->work_bytes[0] / unit};
    assert_int_equal(stats->work_bytes[0] % unit, 0);
    s.owner = calloc(s.n_units + 1, sizeof *s.owner);
    assert_non_null(s.owner);
    int32_t n;
    const mr_node *nodes = mr_graph_nodes(g, &n);
    for (int i = 0; i < n_inputs; i++)
        write_tensor(&s, inputs[i]);
    for (int32_t first = 0, last; first < n; first = last) {
        for (last = first; last < n && nodes[last].group == nodes[first].group;)
            last++;
        run_group(&s, nodes, first, last);
    }
    for (int32_t i = 0; i < n; i++)
        if (nodes[i].out != NONE && mr_graph_tensor(g, nodes[i].out)->storage == MR_STORAGE_OUTPUT)
            expect_intact(&s, nodes[i].out, "the caller");
    free(s.owner);
}

/* --- Random graphs ----------------------------------------------------------------------------------------------- */

/* Tensors of [WIDTH, step rows] or [WIDTH, rows with logits] that the next node may read. */
typedef struct maker {
    mr_graph *g;
    uint64_t stream, counter;
    int32_t rows[64], out_rows[64];
    int n_rows, n_out_rows;
    int32_t inputs[MAX_INPUT_TENSORS];
    int n_inputs;
    layer_inputs layer;
    int32_t take;
} maker;

static uint32_t pick(maker *m, uint32_t n) {
    return (uint32_t)(mr_rng_u64(SEED, m->stream, m->counter++) >> 20) % n;
}

/* Picks one of the tensors, most often a late one. */
static int32_t pick_of(maker *m, const int32_t *ids, int n) {
    uint32_t back = pick(m, 3) ? pick(m, n < 3 ? (uint32_t)n : 3) : pick(m, (uint32_t)n);
    return ids[n - 1 - (int)back];
}

static mr_type pick_type(maker *m) {
    return pick(m, 2) ? MR_TYPE_Q8_0 : MR_TYPE_F16;
}

/* A feed-forward part, or one node. */
static int32_t add_node(maker *m, const int32_t *ids, int n) {
    static const mr_rope_desc rope = {.head_dim = HEAD_DIM, .n_rot = HEAD_DIM};
    mr_graph *g = m->g;
    int32_t x = pick_of(m, ids, n), y = pick_of(m, ids, n), gate, up;
    bool step_rows = ids == m->rows;
    switch (pick(m, 7)) {
    case 0:
        return mr_graph_add(g, x, y);
    case 1:
        return mr_graph_rms_norm(g, x, add_vector(g, pick(m, 2) ? WIDTH : HEAD_DIM), 1e-5f);
    case 2:
        return mr_graph_matmul(g, add_weight(g, pick_type(m), WIDTH, WIDTH), x, NONE, pick(m, 2) ? y : NONE);
    case 3:
        return silu_mul(g, x, y);
    case 4:
        return step_rows ? mr_graph_rope(g, x, m->layer.rope_table, &rope) : mr_graph_add(g, x, x);
    case 5:
        if (step_rows)
            return add_layer(g, &m->layer, pick_type(m), x);
        /* fall through */
    default:
        gate = mr_graph_matmul(g, add_weight(g, pick_type(m), WIDTH, 3 * WIDTH), x, NONE, NONE);
        up = mr_graph_matmul(g, add_weight(g, pick_type(m), WIDTH, 3 * WIDTH), y, NONE, NONE);
        return mr_graph_matmul(g, add_weight(g, MR_TYPE_Q8_0, 3 * WIDTH, WIDTH), silu_mul(g, gate, up), NONE, x);
    }
}

static int32_t note_input(maker *m, int32_t id) {
    m->inputs[m->n_inputs++] = id;
    return id;
}

static void note_layer_inputs(maker *m) {
    m->layer = add_layer_inputs(m->g);
    note_input(m, m->layer.attention.slots);
    note_input(m, m->layer.attention.row_seq);
    note_input(m, m->layer.positions);
}

static void make_random(maker *m, int n_nodes) {
    mr_graph *g = m->g;
    m->rows[m->n_rows++] = note_input(m, add_rows(g));
    if (pick(m, 2))
        m->rows[m->n_rows++] = note_input(m, add_rows(g));
    note_layer_inputs(m);
    m->take = note_input(m, mr_graph_input(g, "out_rows", MR_TYPE_I32, 1, MR_ROWS_OUT));
    for (int i = 0; i < n_nodes; i++) {
        uint32_t where = pick(m, 4);
        bool few = where == 0 || (where == 1 && m->n_out_rows > 0);
        int32_t id;
        if (where == 0)
            id = mr_graph_take_rows(g, pick_of(m, m->rows, m->n_rows), m->take);
        else
            id = few ? add_node(m, m->out_rows, m->n_out_rows) : add_node(m, m->rows, m->n_rows);
        if (few)
            m->out_rows[m->n_out_rows++] = id;
        else
            m->rows[m->n_rows++] = id;
    }
    for (int i = 2; i < m->n_rows; i++)
        if (pick(m, 8) == 0 || i + 1 == m->n_rows)
            mr_graph_output(g, m->rows[i]);
}

static void test_random_graphs(void **state) {
    (void)state;
    double shared = 0, unshared = 0;
    for (uint64_t i = 0; i < N_GRAPHS; i++) {
        fake_backend be = fake_backend_make();
        be.alignment = i % 3 == 0 ? 256 : 64;
        /* In some graphs all rows want logits. Tensors of both row counts then have the same size. */
        int32_t rows = (int32_t)(i % 9) + 1, out = i % 4 == 0 ? rows : 1;
        maker m = {.g = graph_make(rows, out), .stream = i};
        make_random(&m, 4 + (int)(i % 40));
        mr_graph_stats stats = finish_ok(m.g, &be);
        simulate(m.g, &stats, be.alignment, m.inputs, m.n_inputs);
        assert_true(stats.work_bytes[0] <= stats.unshared_bytes);
        shared += (double)stats.work_bytes[0];
        unshared += (double)stats.unshared_bytes;
        mr_graph_destroy(m.g);
    }
    print_message("seed %d: plans take %.2f of what they would without reuse\n", SEED, shared / unshared);
    assert_true(shared < 0.6 * unshared);
}

/* Whether a tensor holds something in that group: it was made before or there, and is read there or later. */
static bool is_alive(const mr_graph *g, int32_t id, int32_t group) {
    int32_t n;
    const mr_node *nodes = mr_graph_nodes(g, &n);
    bool made = mr_graph_tensor(g, id)->storage == MR_STORAGE_INPUT;
    bool wanted = mr_graph_tensor(g, id)->storage == MR_STORAGE_OUTPUT;
    for (int32_t i = 0; i < n; i++) {
        made |= nodes[i].out == id && nodes[i].group <= group;
        wanted |= nodes[i].out == id && nodes[i].group == group;
        for (int k = 0; k < MR_MAX_INPUTS; k++)
            wanted |= nodes[i].in[k] == id && nodes[i].group >= group;
    }
    return made && wanted;
}

/* A bound that no plan with these in-place results can beat: the most bytes that are alive in one group. */
static size_t most_alive_bytes(const mr_graph *g, int32_t n_groups, size_t unit) {
    int32_t n;
    const mr_node *nodes = mr_graph_nodes(g, &n);
    size_t most = 0;
    for (int32_t group = 0; group < n_groups; group++) {
        uint8_t used[4096] = {0};
        size_t bytes = 0;
        for (int32_t i = 0; i < n * (MR_MAX_INPUTS + 1); i++) {
            const mr_node *node = &nodes[i / (MR_MAX_INPUTS + 1)];
            int k = i % (MR_MAX_INPUTS + 1);
            int32_t id = k == MR_MAX_INPUTS ? node->out : node->in[k];
            if (id == NONE || !is_work(mr_graph_tensor(g, id)) || !is_alive(g, id, group))
                continue;
            const mr_tensor *t = mr_graph_tensor(g, id);
            for (size_t at = t->offset / unit; at < (t->offset + t->bytes + unit - 1) / unit; at++) {
                assert_true(at < sizeof used);
                bytes += used[at] ? 0 : unit;
                used[at] = 1;
            }
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}

static void test_deep_models_take_the_memory_of_two_layers(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F16, MR_TYPE_Q8_0};
    for (int t = 0; t < 2; t++) {
        size_t of_two = 0;
        for (int n_layers = 2; n_layers <= 12; n_layers += 10) {
            fake_backend be = fake_backend_make();
            maker m = {.g = graph_make(32, 4)};
            int32_t x = note_input(&m, add_rows(m.g));
            note_layer_inputs(&m);
            for (int l = 0; l < n_layers; l++)
                x = add_layer(m.g, &m.layer, types[t], x);
            mr_graph_output(m.g, x);
            mr_graph_stats stats = finish_ok(m.g, &be);
            simulate(m.g, &stats, 64, m.inputs, m.n_inputs);
            size_t least = most_alive_bytes(m.g, stats.n_groups, 64);
            print_message("%s, %d layers: %zu bytes, at least %zu, without reuse %zu\n", mr_type_name(types[t]),
                          n_layers, stats.work_bytes[0], least, stats.unshared_bytes);
            assert_true(stats.work_bytes[0] >= least);
            assert_true(stats.work_bytes[0] <= least + least / 16);
            assert_true(stats.work_bytes[0] < stats.unshared_bytes / 4);
            of_two = n_layers == 2 ? stats.work_bytes[0] : of_two;
            assert_int_equal(stats.work_bytes[0], of_two);
            mr_graph_destroy(m.g);
        }
    }
}

/* --- In place ---------------------------------------------------------------------------------------------------- */

static bool same_place(const mr_graph *g, int32_t a, int32_t b) {
    return mr_graph_tensor(g, a)->offset == mr_graph_tensor(g, b)->offset;
}

/* x + W h lies over x where x dies there, and nowhere else. */
static void test_a_residual_is_added_in_place(void **state) {
    (void)state;
    for (int reader = 0; reader < 4; reader++) {
        fake_backend be = fake_backend_make();
        mr_graph *g = graph_make(8, 8);
        int32_t x = add_rows(g);
        x = mr_graph_add(g, x, x);
        int32_t h = mr_graph_rms_norm(g, x, add_vector(g, WIDTH), 1e-5f);
        int32_t y = mr_graph_matmul(g, add_weight(g, MR_TYPE_F16, WIDTH, WIDTH), h, NONE, x);
        if (reader == 1) /* reads x after the product */
            mr_graph_output(g, mr_graph_add(g, y, x));
        else if (reader == 2) /* reads x in the same group as the product */
            mr_graph_output(g, mr_graph_add(g, h, x));
        else if (reader == 3)
            mr_graph_output(g, x);
        mr_graph_output(g, y);
        finish_ok(g, &be);
        assert_int_equal(same_place(g, x, y), reader == 0);
        mr_graph_destroy(g);
    }
}

/* The activations of the stage before are an input: their memory is used on, too. */
static void test_an_input_is_overwritten(void **state) {
    (void)state;
    fake_backend be = fake_backend_make();
    mr_graph *g = graph_make(8, 8);
    layer_inputs in = add_layer_inputs(g);
    int32_t x = add_rows(g), y = add_layer(g, &in, MR_TYPE_F16, x);
    mr_graph_output(g, y);
    finish_ok(g, &be);
    assert_true(same_place(g, x, y));
    mr_graph_destroy(g);
}

/* a + a reads a twice; the rows of another type or size take another place. */
static void test_what_cannot_be_in_place(void **state) {
    (void)state;
    fake_backend be = fake_backend_make();
    mr_graph *g = graph_make(8, 8);
    int32_t x = add_rows(g);
    /* Fused with the quantisation: the result is A8. */
    int32_t h = mr_graph_rms_norm(g, x, add_vector(g, WIDTH), 1e-5f);
    int32_t y = mr_graph_matmul(g, add_weight(g, MR_TYPE_Q8_0, WIDTH, WIDTH), h, NONE, NONE);
    int32_t z = mr_graph_add(g, y, y);
    mr_graph_output(g, z);
    mr_graph_stats stats = finish_ok(g, &be);
    simulate(g, &stats, be.alignment, &x, 1);
    assert_int_equal(mr_graph_tensor(g, maker_of(g, y)->in[1])->type, MR_TYPE_A8);
    assert_false(same_place(g, maker_of(g, y)->in[1], x));
    assert_false(same_place(g, y, z));
    mr_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_deep_models_take_the_memory_of_two_layers),
        cmocka_unit_test(test_a_residual_is_added_in_place),
        cmocka_unit_test(test_an_input_is_overwritten),
        cmocka_unit_test(test_what_cannot_be_in_place),
    };
    return cmocka_run_group_tests_name("graph_memory", tests, NULL, NULL);
}
