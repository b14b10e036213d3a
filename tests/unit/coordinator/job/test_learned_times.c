/* Time curves and link times from the reports of stages. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/learned_times.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

static mr_learned_times *create(int32_t n_stages) {
    mr_learned_times *t = NULL;
    mr_err err;
    expect_ok(mr_learned_times_create(n_stages, &t, &err), &err);
    return t;
}

/* So many steps of so many rows have taken a time each. */
static void report(mr_learned_times *t, uint32_t stage, uint32_t n, uint64_t rows, double seconds) {
    uint32_t steps[MR_ROW_CLASSES] = {0};
    uint64_t all_rows[MR_ROW_CLASSES] = {0}, ns[MR_ROW_CLASSES] = {0};
    Millrace__StepSums sums = MILLRACE__STEP_SUMS__INIT;
    int c = 0;
    while ((uint64_t)1 << c < rows)
        c++;
    steps[c] = n;
    all_rows[c] = n * rows;
    ns[c] = (uint64_t)(n * seconds * 1e9);
    sums.stage = stage;
    sums.n_steps = sums.n_rows = sums.n_ns = MR_ROW_CLASSES;
    sums.steps = steps;
    sums.rows = all_rows;
    sums.ns = ns;
    uint64_t allocs = mr_mem_thread_allocs();
    mr_learned_times_add(t, &sums, true);
    (void)mr_learned_times_get(t);
    assert_int_equal(mr_mem_thread_allocs(), allocs);
}

static void report_round(mr_learned_times *t, uint32_t rows, double seconds, bool is_short) {
    Millrace__StepSums sums = MILLRACE__STEP_SUMS__INIT;
    sums.round_rows = rows;
    sums.round_ns = (uint64_t)(seconds * 1e9);
    mr_learned_times_add(t, &sums, is_short);
}

static double at(mr_learned_times *t, int32_t stage, double rows) {
    const mr_pipeline_times *p = mr_learned_times_get(t);
    assert_non_null(p);
    return mr_step_times_at(&p->stages[stage], rows);
}

static void test_learns(void **state) {
    (void)state;
    mr_learned_times *t = create(2);
    assert_null(mr_learned_times_get(t));
    report(t, 0, 10, 16, 0.047);
    assert_null(mr_learned_times_get(t)); /* nothing is known of the second stage yet */
    report(t, 1, 10, 16, 0.045);
    assert_float_equal(at(t, 0, 16), 0.047, 1e-6);
    assert_float_equal(at(t, 1, 16), 0.045, 1e-6);
    /* Twice as many rows take longer, but not twice as long. Fewer rows take less. */
    assert_true(at(t, 0, 32) > 0.06 && at(t, 0, 32) < 0.094);
    assert_true(at(t, 0, 8) < 0.047 && at(t, 0, 1) > 0.01);
    report(t, 0, 10, 8, 0.03);
    report(t, 0, 10, 64, 0.2);
    assert_float_equal(at(t, 0, 8), 0.03, 1e-6);
    assert_float_equal(at(t, 0, 40), (0.047 + 0.2) / 2, 1e-6);
    /* The times follow the reports. Reports of many steps have more weight. */
    report(t, 0, 1, 16, 0.06);
    assert_float_equal(at(t, 0, 16), 0.047 + 0.25 * 0.013, 1e-6);
    for (int i = 0; i < 30; i++)
        report(t, 0, 9, 16, 0.06);
    assert_float_equal(at(t, 0, 16), 0.06, 1e-4);
    /* Noise may report a shorter time for more rows. The learned times never decrease with the rows. */
    report(t, 0, 1000000, 32, 0.01);
    assert_true(at(t, 0, 32) >= at(t, 0, 16));
    mr_learned_times_destroy(t);
}

/* What is usual are steps that ran, whatever was measured before the start and for however many rows. */
static void test_usual(void **state) {
    (void)state;
    mr_learned_times *t = create(2);
    mr_learned_step step;
    const mr_step_times stages[] = {{.n = 1, .rows = {1}, .seconds = {0.01}}, {.n = 1, .rows = {1}, .seconds = {0.01}}};
    const mr_pipeline_times measured = {.n_stages = 2, .stages = stages};
    mr_learned_times_measured(t, &measured);
    assert_false(mr_learned_times_usual(t, 0, &step));
    report(t, 0, 3, 512, 0.5);
    assert_true(mr_learned_times_usual(t, 0, &step));
    assert_float_equal(step.rows, 512, 1e-9);
    report(t, 0, 2, 7, 0.03);
    report(t, 0, 2, 7, 0.03);
    assert_true(mr_learned_times_usual(t, 0, &step));
    assert_float_equal(step.rows, 7, 1e-9);
    assert_float_equal(step.seconds, 0.03, 1e-6);
    assert_false(mr_learned_times_usual(t, 1, &step));
    mr_learned_times_destroy(t);
}

static void test_hops(void **state) {
    (void)state;
    mr_learned_times *t = create(3);
    report_round(t, 8, 1, true); /* the report is ignored, because no times of stages are known */
    for (uint32_t i = 0; i < 3; i++)
        report(t, i, 10, 8, 0.01);
    assert_float_equal(mr_learned_times_get(t)->hops_s, 0, 1e-9);
    report_round(t, 8, 0.031, true);
    /* Minus the times of the two stages beside the head. */
    assert_float_equal(mr_learned_times_get(t)->hops_s, 0.011, 1e-6);
    report_round(t, 8, 0.025, false);
    assert_float_equal(mr_learned_times_get(t)->hops_s, 0.005, 1e-6);
    /* The step may have waited behind other steps, so a longer round trip is ignored. */
    report_round(t, 8, 0.095, false);
    assert_float_equal(mr_learned_times_get(t)->hops_s, 0.005, 1e-6);
    report_round(t, 8, 0.035, true);
    assert_float_equal(mr_learned_times_get(t)->hops_s, 0.006, 1e-6);
    report_round(t, 8, 0.001, true);
    assert_float_equal(mr_learned_times_get(t)->hops_s, 0, 1e-9);
    mr_learned_times_destroy(t);
}

static void test_measured(void **state) {
    (void)state;
    mr_learned_times *t = create(2);
    const mr_step_times stages[] = {{.n = 2, .rows = {1, 512}, .seconds = {0.01, 0.521}},
                                    {.n = 2, .rows = {1, 512}, .seconds = {0.02, 0.531}}};
    const mr_pipeline_times measured = {.n_stages = 2,
                                        .stages = stages,
                                        .output = {.n = 1, .rows = {1}, .seconds = {0.005}},
                                        .hops_s = 0.001,
                                        .link_row_s = 1e-6};
    mr_learned_times_measured(t, &measured);
    assert_float_equal(at(t, 0, 101), 0.11, 1e-3);
    assert_float_equal(at(t, 1, 101), 0.125, 1e-3);
    assert_float_equal(mr_learned_times_get(t)->hops_s, 0.001, 1e-9);
    assert_float_equal(mr_learned_times_get(t)->link_row_s, 1e-6, 1e-12);
    /* One stage runs at half the speed. The report is applied to all row counts. */
    report(t, 0, 10, 64, 2 * 0.073);
    assert_float_equal(at(t, 0, 64), 0.146, 1e-6);
    assert_float_equal(at(t, 0, 256), 2 * 0.265, 1e-3);
    assert_float_equal(at(t, 0, 1), 0.02, 1e-3);
    assert_float_equal(at(t, 1, 101), 0.125, 1e-3);
    mr_learned_times_destroy(t);
}

static void test_failing_allocations(void **state) {
    (void)state;
    mr_learned_times *t = NULL;
    mr_err err;
    int n_failed = 0;
    for (;; n_failed++) {
        mr_mem_fail_at(n_failed);
        mr_status status = mr_learned_times_create(7, &t, &err);
        mr_mem_fail_at(-1);
        if (status == MR_OK)
            break;
        assert_int_equal(status, MR_E_NO_MEMORY);
    }
    assert_int_equal(n_failed, 3);
    mr_learned_times_destroy(t);
    mr_learned_times_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_usual),
        cmocka_unit_test(test_hops),
        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
