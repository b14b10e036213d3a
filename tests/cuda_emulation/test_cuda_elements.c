/* tests/cuda_emulation/test_cuda_elements.c - ops that compute element by element, embeddings, copies of rows and RoPE
 * on a device have the bits of the scalar kernels. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/quant.h"
#include "tests/cuda_emulation/node_case.h"
#include "tests/support/test.h"

static rng numbers = {.state = 2};
static const int32_t SIZES[] = {1, 31, 255, 256, 257, 600};
enum { N_SIZES = sizeof SIZES / sizeof *SIZES };

static void check_elements(mr_op op, int32_t n, fill how) {
    node_case c;
    node_case_begin(&c, op, (node_rows){.bucket = 4, .real = 3});
    c.node.in[0] = node_case_floats(&c, &numbers, n, 0, how);
    if (op == MR_OP_ADD || op == MR_OP_ADD_GATED)
        c.node.in[1] = node_case_floats(&c, &numbers, n, 0, how % 2 ? how : PLAIN);
    if (op == MR_OP_ADD_GATED)
        c.node.in[2] = node_case_floats(&c, &numbers, 1, 0, how);
    if (op == MR_OP_SCALE || op == MR_OP_SOFT_CAP)
        c.node.params.scale.factor = how % 2 ? 30.0f : 0.7f;
    c.node.out = n % 2 ? node_case_rows(&c, MR_TYPE_F32, n) : c.node.in[0];
    node_case_check(&c);
}

static void test_elements(void **state) {
    (void)state;
    static const mr_op OPS[] = {MR_OP_ADD, MR_OP_ADD_GATED, MR_OP_SCALE, MR_OP_SOFT_CAP};
    for (int o = 0; o < 4; o++)
        for (int s = 0; s < N_SIZES; s++)
            for (fill how = PLAIN; how < FILLS; how++)
                check_elements(OPS[o], SIZES[s], how);
}

static void test_take_rows(void **state) {
    (void)state;
    for (int s = 0; s < N_SIZES; s++) {
        node_case c;
        node_case_begin(&c, MR_OP_TAKE_ROWS, (node_rows){.bucket = 5, .real = 4});
        c.node.in[0] = node_case_floats(&c, &numbers, SIZES[s], 0, ANY_BITS);
        c.node.in[1] = node_case_ints(&c, &numbers, 4);
        c.node.out = node_case_rows(&c, MR_TYPE_F32, SIZES[s]);
        c.tensors[c.node.in[1]].row_count = c.tensors[c.node.out].row_count = MR_ROWS_OUT;
        node_case_check(&c);
    }
}

enum { TABLE_ROWS = 7 };

/* Random blocks; every second row has scales of a model, the others any bits, which may be infinite or NaNs. */
static void build_embed(node_case *c, mr_type type, int32_t n) {
    const mr_type_info *info = mr_type_get(type);
    node_case_begin(c, MR_OP_EMBED, (node_rows){.bucket = 8, .real = 7});
    c->node.in[0] = node_case_tensor(c, type, n, TABLE_ROWS, MR_STORAGE_FILE, MR_ROWS_FIXED);
    c->node.in[1] = node_case_ints(c, &numbers, TABLE_ROWS);
    c->node.out = node_case_rows(c, MR_TYPE_F32, n);
    uint8_t *table = node_case_row(c, c->node.in[0], 0);
    for (size_t i = 0; i < c->tensors[c->node.in[0]].bytes; i++)
        table[i] = (uint8_t)rng_next(&numbers);
    for (int32_t row = 0; row < TABLE_ROWS; row += 2)
        for (int32_t b = 0; b < n / info->block_elems && type != MR_TYPE_F32; b++)
            mr_block_set_scale(type, (uint8_t *)node_case_row(c, c->node.in[0], row) + b * info->block_bytes,
                               (uint16_t)(0x1000 + rng_below(&numbers, 0x800)), (uint16_t)rng_below(&numbers, 0x1000));
}

static void test_embed(void **state) {
    (void)state;
    static const mr_type TYPES[] = {MR_TYPE_F32,  MR_TYPE_F16,    MR_TYPE_BF16,  MR_TYPE_Q8_0,
                                    MR_TYPE_Q4_0, MR_TYPE_IQ4_NL, MR_TYPE_MXFP4, MR_TYPE_Q4_K,
                                    MR_TYPE_Q5_K, MR_TYPE_Q6_K,   MR_TYPE_IQ4_XS};
    for (size_t t = 0; t < sizeof TYPES / sizeof *TYPES; t++)
        for (int round = 0; round < 12; round++) {
            int32_t block = mr_type_get(TYPES[t])->block_elems;
            node_case c;
            build_embed(&c, TYPES[t], block == 1 ? SIZES[round % N_SIZES] : block * (1 + round % 3 * 4));
            node_case_check(&c);
        }
}

static void test_other_tables_are_refused(void **state) {
    (void)state;
    static const mr_type TYPES[] = {MR_TYPE_Q4_1, MR_TYPE_Q2_K, MR_TYPE_IQ2_XXS};
    for (size_t t = 0; t < sizeof TYPES / sizeof *TYPES; t++) {
        node_case c;
        build_embed(&c, TYPES[t], 256);
        assert_false(node_case_is_supported(&c));
        node_case_end(&c);
    }
}

static void test_rope_table(void **state) {
    (void)state;
    static const int32_t HALVES[] = {1, 2, 31, 32, 63, 64, 65, 128};
    for (int32_t i = 0; i < 8 * FILLS; i++) {
        int32_t half = HALVES[i % 8];
        node_case c;
        node_case_begin(&c, MR_OP_ROPE_TABLE, (node_rows){.bucket = 9, .real = 8});
        c.node.in[0] = node_case_floats(&c, &numbers, half, MR_ROPE_ROWS, PLAIN);
        c.node.in[1] = node_case_ints(&c, &numbers, i % 2 ? 300000 : 3);
        c.node.out = node_case_rows(&c, MR_TYPE_F32, 2 * half);
        c.node.params.rope.magnitude = i % 3 ? 1.0f : 1.2f;
        for (int32_t k = 0; k < half; k++) { /* as those of a model: each angle is less than the one before */
            ((float *)node_case_row(&c, c.node.in[0], MR_ROPE_STEP))[k] = k ? 1.0f - 0.5f / (float)(1 + k % 7) : 1.0f;
            ((float *)node_case_row(&c, c.node.in[0], MR_ROPE_FACTOR))[k] = 1.0f + (float)(k % 5) / 3.0f;
            ((float *)node_case_row(&c, c.node.in[0], MR_ROPE_SLOW))[k] = (float)(k % 4) / 7.0f;
            ((float *)node_case_row(&c, c.node.in[0], MR_ROPE_KEEP))[k] = 1.0f - (float)(k % 4) / 7.0f;
        }
        node_case_check(&c);
    }
}

typedef struct rope_shape {
    int32_t n_heads, head_dim, first, n_rot;
} rope_shape;

static void check_rope(rope_shape s, fill how, bool in_place, mr_rope_pairs pairs) {
    node_case c;
    node_case_begin(&c, MR_OP_ROPE, (node_rows){.bucket = 4, .real = 3});
    c.node.in[0] = node_case_floats(&c, &numbers, s.n_heads * s.head_dim, 0, how);
    c.node.in[1] = node_case_floats(&c, &numbers, s.n_rot, 0, how % 2 ? how : PLAIN);
    c.node.out = in_place ? c.node.in[0] : node_case_rows(&c, MR_TYPE_F32, s.n_heads * s.head_dim);
    c.node.params.rope.head_dim = s.head_dim;
    c.node.params.rope.first = s.first;
    c.node.params.rope.n_rot = s.n_rot;
    c.node.params.rope.pairs = pairs;
    node_case_check(&c);
}

static void test_rope(void **state) {
    (void)state;
    static const rope_shape SHAPES[] = {{1, 2, 0, 2},    {3, 14, 0, 14}, {5, 80, 0, 64},  {4, 64, 0, 64},
                                        {3, 96, 32, 64}, {2, 18, 4, 10}, {2, 256, 0, 256}};
    for (size_t s = 0; s < sizeof SHAPES / sizeof *SHAPES; s++)
        for (fill how = PLAIN; how < FILLS; how++)
            for (int i = 0; i < 4; i++)
                check_rope(SHAPES[s], how, i % 2, i / 2 ? MR_ROPE_HALVES : MR_ROPE_INTERLEAVED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements),   cmocka_unit_test(test_take_rows),
        cmocka_unit_test(test_embed),      cmocka_unit_test(test_other_tables_are_refused),
        cmocka_unit_test(test_rope_table), cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests(tests, NULL, node_case_teardown);
}
