/* tests/cuda_emulation/test_cuda_rows.c - norms, conversions of activations and gated units on a device have the bits
 * of the scalar kernels. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/node_case.h"
#include "tests/support/test.h"

static rng numbers = {.state = 1};
static const mr_type RESULTS[] = {MR_TYPE_F32, MR_TYPE_BF16, MR_TYPE_A8};

/* A result for n columns; MR_NO_TENSOR where the type cannot have them. */
static int32_t add_result(node_case *c, mr_type type, int32_t n) {
    bool fits = type == MR_TYPE_A8 ? n % 32 == 0 : type != MR_TYPE_BF16 || n > 1;
    return fits ? node_case_rows(c, type, n) : MR_NO_TENSOR;
}

static void check_quantize(int32_t n, fill how, mr_type type) {
    node_case c;
    node_case_begin(&c, MR_OP_QUANTIZE, (node_rows){.bucket = 3, .real = 2});
    c.node.in[0] = node_case_floats(&c, &numbers, n, 0, how);
    c.node.out = add_result(&c, type, n);
    if (c.node.out == MR_NO_TENSOR)
        node_case_end(&c);
    else
        node_case_check(&c);
}

static void test_quantize(void **state) {
    (void)state;
    static const int32_t SIZES[] = {1, 7, 31, 32, 33, 64, 96, 128, 160, 1024, 1056, 2047};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        for (fill how = PLAIN; how < FILLS; how++)
            for (int t = 1; t < 3; t++)
                check_quantize(SIZES[i], how, RESULTS[t]);
}

static void check_glu(int32_t n, fill how, mr_type type, mr_glu glu) {
    node_case c;
    node_case_begin(&c, MR_OP_GLU, (node_rows){.bucket = 3, .real = 2});
    c.node.in[0] = node_case_floats(&c, &numbers, n, 0, how);
    c.node.in[1] = node_case_floats(&c, &numbers, n, 0, rng_next(&numbers) % 2 ? PLAIN : how);
    c.node.out = add_result(&c, type, n);
    c.node.params.glu = glu;
    if (c.node.out == MR_NO_TENSOR)
        node_case_end(&c);
    else
        node_case_check(&c);
}

static void test_glu(void **state) {
    (void)state;
    static const int32_t SIZES[] = {1, 32, 47, 96, 1056};
    for (int i = 0; i < 5 * FILLS * 3; i++)
        for (int kind = 0; kind < MR_GLU_KINDS; kind++)
            check_glu(SIZES[i % 5], (fill)(i / 5 % FILLS), RESULTS[i / 5 / FILLS],
                      (mr_glu){.kind = (mr_glu_kind)kind, .limit = (i + kind) % 2 ? 1.5f : 0.0f});
}

typedef struct norm_shape {
    int32_t m, n_groups, n_kept;
} norm_shape;

static void build_norm(node_case *c, norm_shape s, fill how, mr_type type) {
    int32_t n = s.m * s.n_groups + s.n_kept;
    node_case_begin(c, MR_OP_RMS_NORM, (node_rows){.bucket = 3, .real = 2});
    c->node.in[0] = node_case_floats(c, &numbers, n, 0, how);
    c->node.in[1] = node_case_floats(c, &numbers, s.m, 1, PLAIN);
    c->node.out = add_result(c, type, n);
    c->node.params.norm.eps = how % 2 ? 1e-5f : 1e-6f;
    c->node.params.norm.n_kept = s.n_kept;
}

static void check_norm(norm_shape s, fill how, mr_type type) {
    node_case c;
    build_norm(&c, s, how, type);
    if (c.node.out == MR_NO_TENSOR)
        node_case_end(&c);
    else
        node_case_check(&c);
}

/* One group and many, in one block and in several, with a part that is copied, and longer than shared memory. */
static void test_rms_norm(void **state) {
    (void)state;
    static const norm_shape SHAPES[] = {
        {1, 1, 0},    {2, 1, 0},   {15, 1, 0},  {16, 1, 0},   {17, 1, 0},   {32, 1, 0},   {127, 1, 0},
        {128, 1, 0},  {129, 1, 0}, {512, 1, 0}, {512, 1, 64}, {100, 1, 28}, {640, 1, 0},  {2048, 1, 0},
        {64, 2, 0},   {128, 5, 0}, {80, 6, 0},  {20, 8, 32},  {3, 64, 0},   {128, 33, 0}, {100, 33, 20},
        {256, 40, 0}, {5, 70, 2},  {1, 65, 31}, {4096, 3, 0},
    };
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
        for (fill how = PLAIN; how < FILLS; how++)
            check_norm(SHAPES[i], how, RESULTS[((int)i + how) % 3]);
    static const norm_shape LONG[] = {{8192, 1, 0},  {8208, 1, 0},  {8193, 1, 31},
                                      {10240, 1, 0}, {16416, 1, 0}, {8224, 2, 64}};
    for (size_t i = 0; i < sizeof LONG / sizeof *LONG; i++)
        for (int t = 0; t < 3; t++)
            check_norm(LONG[i], t == 0 ? ANY_BITS : PLAIN, RESULTS[t]);
}

/* The result may stand in place of the input. */
static void test_rms_norm_in_place(void **state) {
    (void)state;
    static const norm_shape SHAPES[] = {{512, 1, 64}, {128, 40, 0}, {544, 20, 0}, {8208, 1, 3}};
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        node_case c;
        build_norm(&c, SHAPES[i], PLAIN, MR_TYPE_F32);
        c.node.out = c.node.in[0];
        node_case_check(&c);
    }
}

static void test_what_is_not_supported(void **state) {
    (void)state;
    node_case c;
    build_norm(&c, (norm_shape){8200, 4, 0}, PLAIN, MR_TYPE_F32); /* blocks would not begin at a multiple of 32 */
    assert_false(node_case_is_supported(&c));
    node_case_end(&c);
    build_norm(&c, (norm_shape){64, 1, 0}, PLAIN, MR_TYPE_F16);
    assert_false(node_case_is_supported(&c));
    c.node.out = node_case_rows(&c, MR_TYPE_BF16, 1); /* no room for the zero behind */
    assert_false(node_case_is_supported(&c));
    node_case_end(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_glu),
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_rms_norm_in_place),
        cmocka_unit_test(test_what_is_not_supported),
    };
    return cmocka_run_group_tests(tests, NULL, node_case_teardown);
}
