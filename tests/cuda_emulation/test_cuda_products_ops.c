/* tests/cuda_emulation/test_cuda_products_ops.c - the ops that multiply matrices have the bits of the scalar kernels on
 * a device. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/node_case.h"
#include "tests/support/test.h"

static rng numbers = {.state = 1};
static const mr_type TYPES[] = {MR_TYPE_Q8_0, MR_TYPE_Q4_K, MR_TYPE_F16, MR_TYPE_BF16, MR_TYPE_F32};
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

static void check_matmul(mr_type type, int32_t n, int32_t real, bool bias, bool add) {
    node_case c;
    node_case_begin(&c, MR_OP_MATMUL, (node_rows){.bucket = real + 1, .real = real});
    c.node.in[0] = node_case_matrices(&c, &numbers, type, 256, n, 1);
    c.node.in[1] = node_case_activations(&c, &numbers, type, 256, MR_ROWS_STEP);
    if (bias)
        c.node.in[2] = node_case_floats(&c, &numbers, n, 1, PLAIN);
    if (add)
        c.node.in[3] = node_case_floats(&c, &numbers, n, 0, PLAIN);
    c.node.out = add && bias ? c.node.in[3] : node_case_rows(&c, MR_TYPE_F32, n);
    node_case_check(&c);
}

static void test_matmul(void **state) {
    (void)state;
    static const int32_t ROWS[] = {1, 8, 16, 40, 70};
    for (int t = 0; t < N_TYPES; t++)
        for (int i = 0; i < 5; i++)
            check_matmul(TYPES[t], 50 + i, ROWS[i], i % 2, i % 3);
}

/* Every row uses some experts; the lists are those of EXPERT_ROWS. */
static int32_t add_lists(node_case *c, int32_t n_experts) {
    int32_t n_slots = c->rows.bucket * c->rows.used, at = 0;
    int32_t id = node_case_tensor(c, MR_TYPE_I32, n_experts + 1 + 2 * n_slots, 1, MR_STORAGE_WORK, MR_ROWS_FIXED);
    mr_expert_rows l = mr_expert_rows_at(node_case_row(c, id, 0), n_experts, n_slots);
    for (int32_t e = 0; e < n_experts; e++) {
        l.first[e] = at;
        for (int32_t slot = 0; slot < c->rows.real * c->rows.used; slot++)
            if (slot * 7 % 11 % n_experts == e) {
                l.slots[at] = slot;
                l.rows[at++] = slot / c->rows.used;
            }
    }
    l.first[n_experts] = at;
    return id;
}

static void check_experts(mr_type type, int32_t real, mr_row_count count, bool bias) {
    enum { EXPERTS = 6, N = 35 };
    node_case c;
    node_case_begin(&c, MR_OP_EXPERT_MATMUL, (node_rows){.bucket = real + 2, .real = real, .used = 3});
    c.node.params.experts.n = EXPERTS;
    c.node.params.experts.n_used = 3;
    c.node.in[0] = node_case_matrices(&c, &numbers, type, 256, N, EXPERTS);
    c.node.in[1] = node_case_activations(&c, &numbers, type, 256, count);
    c.node.in[2] = add_lists(&c, EXPERTS);
    if (bias)
        c.node.in[3] = node_case_floats(&c, &numbers, N, EXPERTS, PLAIN);
    c.node.out = node_case_tensor(&c, MR_TYPE_F32, N, (real + 2) * 3, MR_STORAGE_WORK, MR_ROWS_SLOTS);
    node_case_check(&c);
}

static void test_expert_matmul(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        check_experts(TYPES[t], 1, MR_ROWS_STEP, true);
        check_experts(TYPES[t], 9, MR_ROWS_SLOTS, false);
        check_experts(TYPES[t], 60, MR_ROWS_STEP, true);
    }
}

static void check_heads(mr_type type, int32_t k, int32_t n_kept, fill how) {
    enum { HEADS = 3, N = 20, REAL = 5 };
    node_case c;
    node_case_begin(&c, MR_OP_HEAD_MATMUL, (node_rows){.bucket = REAL + 1, .real = REAL});
    c.node.params.heads.n = HEADS;
    c.node.in[0] = node_case_matrices(&c, &numbers, type, k, N, HEADS);
    c.node.in[1] = node_case_floats(&c, &numbers, HEADS * (k + n_kept), 0, how);
    c.node.out = node_case_rows(&c, MR_TYPE_F32, HEADS * (N + n_kept));
    node_case_check(&c);
}

static void test_head_matmul(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++)
        for (fill how = PLAIN; how < FILLS; how++)
            check_heads(TYPES[t], 256, how % 2 ? 7 : 0, how);
    check_heads(MR_TYPE_Q8_0, 32, 300, PLAIN);
    check_heads(MR_TYPE_Q8_0, 1120, 64, PLAIN);
    check_heads(MR_TYPE_BF16, 33, 64, PLAIN);
}

static void check_gate_up(mr_type type, mr_type up, int32_t n, int32_t real, mr_type out, mr_glu glu) {
    node_case c;
    node_case_begin(&c, MR_OP_GATE_UP, (node_rows){.bucket = real + 1, .real = real});
    c.node.params.glu = glu;
    c.node.in[0] = node_case_matrices(&c, &numbers, type, 256, n, 1);
    c.node.in[1] = node_case_matrices(&c, &numbers, up, 256, n, 1);
    c.node.in[2] = node_case_activations(&c, &numbers, type, 256, MR_ROWS_STEP);
    c.node.out = node_case_rows(&c, out, n);
    node_case_check(&c);
}

static void test_gate_up(void **state) {
    (void)state;
    static const mr_type RESULTS[] = {MR_TYPE_A8, MR_TYPE_BF16, MR_TYPE_F32};
    for (int i = 0; i < N_TYPES * 3; i++) {
        mr_type type = TYPES[i / 3], out = RESULTS[i % 3];
        mr_glu glu = {.kind = (mr_glu_kind)(i % MR_GLU_KINDS), .limit = i % 2 ? 1.5f : 0};
        check_gate_up(type, type, out == MR_TYPE_A8 ? 96 : 83, 1 + 9 * (i % 4), out, glu);
    }
    check_gate_up(MR_TYPE_Q4_K, MR_TYPE_Q6_K, 64, 3, MR_TYPE_A8, (mr_glu){0});
}

/* What the kernels cannot do goes to another backend. */
static void test_others_are_refused(void **state) {
    (void)state;
    node_case c;
    node_case_begin(&c, MR_OP_MATMUL, (node_rows){.bucket = 2, .real = 2});
    c.node.in[0] = node_case_matrices(&c, &numbers, MR_TYPE_Q8_0, 64, 16, 1);
    c.node.in[1] = node_case_activations(&c, &numbers, MR_TYPE_Q8_0, 64, MR_ROWS_STEP);
    c.node.out = node_case_rows(&c, MR_TYPE_F32, 16);
    assert_true(node_case_is_supported(&c));
    c.tensors[c.node.in[0]].storage = MR_STORAGE_FILE;
    assert_false(node_case_is_supported(&c));
    c.tensors[c.node.in[0]].storage = MR_STORAGE_WEIGHT;
    c.tensors[c.node.in[1]].type = MR_TYPE_F32;
    assert_false(node_case_is_supported(&c));
    c.tensors[c.node.in[1]].type = MR_TYPE_A8;
    c.tensors[c.node.in[0]].type = MR_TYPE_Q2_K;
    assert_false(node_case_is_supported(&c));
    node_case_end(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),  cmocka_unit_test(test_expert_matmul),      cmocka_unit_test(test_head_matmul),
        cmocka_unit_test(test_gate_up), cmocka_unit_test(test_others_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, node_case_teardown);
}
