/* The first tokens of rows of logits, found by a device: every byte of the CPU's, whatever the logits, and around the
 * pieces of blocks and the number of tokens that are taken. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_top.h"
#include "engine/base/top.h"
#include "tests/cuda_emulation/emulator.h"
#include "tests/cuda_emulation/node_case.h"
#include "tests/support/test.h"

static rng numbers = {.state = 9};

/* Rows beyond those of fill_floats: a few values that many tokens share, one value, zeros of both signs with denormals,
 * mostly -inf, -inf alone, one NaN at either end, keys that differ in their last bits only. */
enum { SHARED = FILLS, EQUAL, ZEROS, FEW, NOTHING, NAN_FIRST, NAN_LAST, CLOSE, KINDS };

static float value_of(int kind, int32_t i) {
    static const float NEAR_ZERO[] = {0.0f, -0.0f, 0x1p-130f, -0x1p-140f};
    switch (kind) {
    case SHARED:
        return (float)rng_below(&numbers, 5) - 2.5f;
    case EQUAL:
        return -3.25f;
    case ZEROS:
        return NEAR_ZERO[rng_below(&numbers, 4)];
    case FEW:
        return i % 97 == 5 ? rng_unit(&numbers) : -INFINITY;
    case NOTHING:
        return -INFINITY;
    case CLOSE:
        return mr_bits_f32(0x41200000u + (uint32_t)rng_below(&numbers, 700));
    default:
        return 12.0f * rng_unit(&numbers);
    }
}

static void fill_row(float *row, int32_t n, int kind) {
    if (kind < FILLS)
        fill_floats(&numbers, row, n, (fill)kind);
    for (int32_t i = 0; i < n && kind >= FILLS; i++)
        row[i] = value_of(kind, i);
    if (kind == NAN_FIRST || kind == NAN_LAST)
        row[kind == NAN_FIRST ? 0 : n - 1] = NAN;
}

/* Five rows of which four are real, each of another kind. */
static void build(node_case *c, int32_t n, int kind) {
    node_case_begin(c, MR_OP_TOP, (node_rows){.bucket = 5, .real = 4});
    c->node.in[0] = node_case_rows(c, MR_TYPE_F32, n);
    c->node.out = node_case_rows(c, MR_TYPE_I32, MR_TOP_COLUMNS);
    for (int32_t row = 0; row < 5; row++)
        fill_row(node_case_row(c, c->node.in[0], row), n, (kind + row) % KINDS);
    c->tensors[c->node.in[0]].row_count = MR_ROWS_OUT;
    c->tensors[c->node.out].row_count = MR_ROWS_TOP;
}

static void test_every_byte(void **state) {
    (void)state;
    static const int32_t SIZES[] = {1,
                                    2,
                                    33,
                                    MR_TOP_TOKENS - 1,
                                    MR_TOP_TOKENS,
                                    MR_TOP_TOKENS + 1,
                                    CUDA_TOP_PIECE - 1,
                                    CUDA_TOP_PIECE,
                                    CUDA_TOP_PIECE + 1,
                                    2 * CUDA_TOP_PIECE,
                                    5 * CUDA_TOP_PIECE + 77};
    for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++)
        for (int kind = (int)s % 3; kind < KINDS; kind += 3) {
            node_case c;
            build(&c, SIZES[s], kind);
            node_case_check(&c);
        }
}

/* More pieces than a block has threads. */
static void test_many_pieces(void **state) {
    (void)state;
    node_case c;
    node_case_begin(&c, MR_OP_TOP, (node_rows){.bucket = 1, .real = 1});
    c.node.in[0] = node_case_floats(&c, &numbers, (CUDA_TOP_THREADS + 2) * CUDA_TOP_PIECE + 5, 0, PLAIN);
    c.node.out = node_case_rows(&c, MR_TYPE_I32, MR_TOP_COLUMNS);
    c.tensors[c.node.in[0]].row_count = MR_ROWS_OUT;
    c.tensors[c.node.out].row_count = MR_ROWS_TOP;
    node_case_check(&c);
}

/* The six kernels read the logits once each, in whole sectors. Besides, blocks read the bins of a level, in halves of
 * sectors, and what pieces have found. */
static void test_traffic(void **state) {
    (void)state;
    enum { N_PIECES = 63, N = N_PIECES * CUDA_TOP_PIECE, ORDERS = 3, READS_OF_PIECES = 5 };
    const uint64_t bins_bytes = 2 * CUDA_TOP_LEVELS * CUDA_TOP_BINS * sizeof(int32_t);
    const uint64_t pieces_bytes = READS_OF_PIECES * N_PIECES * 32;
    node_case c;
    node_case_begin(&c, MR_OP_TOP, (node_rows){.bucket = 1, .real = 1});
    c.node.in[0] = node_case_floats(&c, &numbers, N, 0, PLAIN);
    c.node.out = node_case_rows(&c, MR_TYPE_I32, MR_TOP_COLUMNS);
    emulator_count_traffic(true);
    emulator_reset_counts();
    node_case_check(&c);
    emulator_count_traffic(false);
    uint64_t logits_bytes = 6 * (uint64_t)N * sizeof(float), blocks_bytes = N_PIECES * (bins_bytes + pieces_bytes);
    assert_in_range(32 * emulator_get_counts().n_sectors / ORDERS, logits_bytes, logits_bytes + blocks_bytes);
}

static void test_other_shapes_are_refused(void **state) {
    (void)state;
    node_case c;
    build(&c, 100, 0);
    assert_true(node_case_is_supported(&c));
    c.tensors[c.node.out].ne[0]--;
    assert_false(node_case_is_supported(&c));
    c.tensors[c.node.out].ne[0]++;
    c.tensors[c.node.in[0]].ne[0] = (1 << 22) + 1;
    assert_false(node_case_is_supported(&c));
    node_case_end(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_many_pieces),
        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_other_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, node_case_teardown);
}
