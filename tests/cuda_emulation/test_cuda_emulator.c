/* tests/cuda_emulation/test_cuda_emulator.c - the emulation runs every thread of every block, in any order. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_elements.h"
#include "tests/cuda_emulation/emulator.h"
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
        emulator_launch(k, (emulator_grid){2, ROWS, 1}, CUDA_ELEMENT_THREADS, &args);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            assert_true(sum[i] == (i < (ROWS - 1) * COLUMNS ? (float)i + 0.5f : 0.0f));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_add)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
