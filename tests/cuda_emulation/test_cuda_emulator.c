/* tests/cuda_emulation/test_cuda_emulator.c - the emulation runs every thread of every block, in any order. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_elements.h"
#include "tests/cuda_emulation/emulator.h"
#include "tests/cuda_emulation/test_kernels.h"
#include "tests/support/test.h"

enum { ROWS = 5, COLUMNS = 300 };

static void test_add(void **state) {
    (void)state;
    static float x[ROWS * COLUMNS], y[ROWS * COLUMNS], sum[ROWS * COLUMNS];
    const uint32_t row_bytes = COLUMNS * sizeof *x;
    cuda_step step = {.n_rows = {[1] = ROWS - 1}};
    cuda_add_args args = {.step = &step,
                          .rows = {.kind = 1},
                          .n = COLUMNS,
                          .a = (uint8_t *)x,
                          .b = (uint8_t *)y,
                          .y = (uint8_t *)sum,
                          .a_row_bytes = row_bytes,
                          .b_row_bytes = row_bytes,
                          .y_row_bytes = row_bytes};
    const emulator_kernel *k = emulator_find("cuda_add");
    assert_non_null(k);
    assert_int_equal(emulator_args_bytes(k), sizeof args);
    for (emulator_order order = EMULATOR_FORWARD; order <= EMULATOR_DRAWN; order++) {
        memset(sum, 0, sizeof sum);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            x[i] = (float)i;
            y[i] = 0.5f;
        }
        emulator_set_order(order, 7);
        emulator_launch(k, (emulator_grid){ROWS, 2, 0}, CUDA_ELEMENT_THREADS, &args);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            assert_true(sum[i] == (i < (ROWS - 1) * COLUMNS ? (float)i + 0.5f : 0.0f));
    }
}

/* A kernel of two warps. */
static emulator_counts count_reads(test_read_kind kind, int32_t n_lanes, int32_t n_reads, int32_t stride_bytes,
                                   int32_t read_bytes) {
    static _Alignas(128) uint8_t x[TEST_READ_BYTES];
    int32_t y[TEST_READ_THREADS];
    const test_read_args args = {x, y, (int32_t)kind, n_lanes, n_reads, stride_bytes, read_bytes};
    emulator_reset_counts();
    emulator_launch(emulator_find("test_read"), (emulator_grid){1, 1, 0}, TEST_READ_THREADS, &args);
    return emulator_get_counts();
}

static void test_traffic(void **state) {
    (void)state;
    static const struct {
        test_read_kind kind;
        int32_t n_lanes, n_reads, stride_bytes, read_bytes;
        uint64_t n_sectors, n_turns, n_conflicts; /* of a warp */
    } cases[] = {
        {TEST_READ_4, 32, 1, 4, 0, .n_sectors = 4},
        {TEST_READ_4, 32, 3, 4, 128, .n_sectors = 12},
        {TEST_READ_4, 32, 3, 32, 4, .n_sectors = 96}, /* each instruction asks for the sectors again */
        {TEST_READ_4, 32, 1, 0, 0, .n_sectors = 1},
        {TEST_READ_4, 9, 1, 4, 0, .n_sectors = 2},
        {TEST_READ_16, 32, 1, 16, 0, .n_sectors = 16},
        {TEST_READ_16, 32, 2, 48, 16, .n_sectors = 64},
        {TEST_COPY_16, 32, 2, 16, 512, .n_sectors = 32},
        {TEST_SHARED_4, 32, 2, 4, 128, .n_turns = 2},
        {TEST_SHARED_4, 32, 1, 0, 0, .n_turns = 1},
        {TEST_SHARED_4, 32, 1, 8, 0, .n_turns = 2, .n_conflicts = 1},
        {TEST_SHARED_4, 32, 1, 128, 0, .n_turns = 32, .n_conflicts = 31},
        {TEST_SHARED_4, 32, 1, 132, 0, .n_turns = 1},
        {TEST_SHARED_8, 32, 1, 8, 0, .n_turns = 2},
        {TEST_SHARED_8, 16, 1, 8, 0, .n_turns = 1},
        {TEST_SHARED_8, 32, 1, 16, 0, .n_turns = 4, .n_conflicts = 2},
        {TEST_SHARED_16, 32, 1, 16, 0, .n_turns = 4},
        {TEST_SHARED_16, 32, 1, 32, 0, .n_turns = 8, .n_conflicts = 4},
        {TEST_SHARED_16, 32, 1, 144, 0, .n_turns = 4},
    };
    for (emulator_order order = EMULATOR_FORWARD; order <= EMULATOR_DRAWN; order++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            emulator_set_order(order, 11);
            emulator_count_traffic(true);
            emulator_counts counts = count_reads(cases[i].kind, cases[i].n_lanes, cases[i].n_reads,
                                                 cases[i].stride_bytes, cases[i].read_bytes);
            assert_int_equal(counts.n_sectors, 2 * cases[i].n_sectors);
            assert_int_equal(counts.n_shared_turns, 2 * cases[i].n_turns);
            assert_int_equal(counts.n_bank_conflicts, 2 * cases[i].n_conflicts);
        }
    emulator_count_traffic(false);
    assert_int_equal(count_reads(TEST_READ_4, 32, 1, 4, 0).n_sectors, 0);
    assert_int_equal(count_reads(TEST_READ_4, 32, 1, 4, 0).read_bytes, 2 * 128);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_add), cmocka_unit_test(test_traffic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
