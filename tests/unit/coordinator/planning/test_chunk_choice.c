/* The chunk that suits the times of the stages. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "coordinator/planning/chunk_choice.h"
#include "tests/support/test.h"

/* Reading takes `read` seconds however many rows there are, or each row takes `row` seconds if that is longer. */
static mr_step_times stage(double read, double row, int32_t most) {
    mr_step_times t = {0};
    for (int32_t rows = 1; rows <= most; rows *= 2) {
        t.rows[t.n] = rows;
        t.seconds[t.n++] = fmax(read, row * rows);
    }
    return t;
}

static mr_chunk_choice choose(mr_step_times a, mr_step_times b, int32_t usual) {
    const mr_step_times stages[] = {a, b};
    const mr_pipeline_times t = {.n_stages = 2, .stages = stages, .output = stage(5, 5, 64)};
    mr_chunk_choice c;
    mr_chunk_choose(&t, usual, &c);
    assert_true(c.n > 0 && c.chosen < c.n && c.rows[0] == usual);
    return c;
}

static void test_reading_decides(void **state) {
    (void)state;
    mr_chunk_choice c = choose(stage(0.1, 0.0001, 2048), stage(0.2, 0.0001, 2048), 256);
    assert_int_equal(c.n, 4);
    assert_int_equal(c.rows[c.chosen], 2048); /* 2,000 rows take as long as reading */
    assert_int_equal(c.reason, MR_CHUNK_LARGEST);
    assert_float_equal(c.rate[0], 256 / 0.2, 1e-6); /* by the slower stage; the output takes no rows of prompts */
    assert_float_equal(c.step_s[3], 0.2048, 1e-9);
    assert_int_equal(choose(stage(0.1, 0.0001, 512), stage(0.2, 0.0001, 2048), 256).rows[1], 512);
    c = choose(stage(0.1, 0.0001, 512), stage(0.2, 0.0001, 2048), 256);
    assert_int_equal(c.n, 2); /* as far as both stages were measured */
}

static void test_products_decide(void **state) {
    (void)state;
    mr_chunk_choice c = choose(stage(0.1, 0.0001, 2048), stage(0.1, 0.0005, 2048), 128);
    assert_int_equal(c.rows[c.chosen], 256); /* 200 rows take as long as reading */
    assert_int_equal(c.reason, MR_CHUNK_GAINS_LITTLE);
    c = choose(stage(0.1, 0.01, 2048), stage(0.1, 0.01, 2048), 128);
    assert_int_equal(c.chosen, 0);
    assert_int_equal(c.reason, MR_CHUNK_GAINS_LITTLE);
}

static void test_no_stage_works_too_long(void **state) {
    (void)state;
    mr_chunk_choice c = choose(stage(0.9, 0.001, 2048), stage(0.9, 0.0015, 2048), 128);
    assert_int_equal(c.rows[c.chosen], 512); /* 1,024 rows would take 1.5 s */
    assert_int_equal(c.reason, MR_CHUNK_TAKES_LONG);
    c = choose(stage(3, 0.001, 2048), stage(3, 0.001, 2048), 128); /* the usual chunk takes long, too */
    assert_int_equal(c.chosen, 0);
    assert_int_equal(c.reason, MR_CHUNK_TAKES_LONG);
}

static void test_without_curves(void **state) {
    (void)state;
    const mr_step_times none = {0};
    mr_chunk_choice c = choose(none, none, 256);
    assert_int_equal(c.n, 1);
    assert_int_equal(c.chosen, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading_decides),
        cmocka_unit_test(test_products_decide),
        cmocka_unit_test(test_no_stage_works_too_long),
        cmocka_unit_test(test_without_curves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
