/* The formula for micro-batches against a simulated pipeline, and the chosen number against all other numbers. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/micro_batches.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"

enum { MAX_STAGES = 6, N_ROUNDS = 200, WARM_UP = 40 };

static uint64_t counter;

static double random_in(double low, double high) {
    return low + (high - low) * (double)(mr_rng_u64(3, 0, counter++) % 1000000) / 1e6;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* Steps take a fixed time up to some number of rows, and more beyond it. */
static mr_step_times random_curve(void) {
    mr_step_times t = {.n = 8};
    double fixed = random_in(1e-3, 5e-3), row = random_in(1e-5, 1e-3), knee = random_in(1, 20);
    for (int i = 0; i < t.n; i++) {
        t.rows[i] = 1 << i;
        t.seconds[i] = fixed + (t.rows[i] > knee ? row * (t.rows[i] - knee) : 0);
    }
    return t;
}

static mr_pipeline_times random_pipeline(mr_step_times stages[MAX_STAGES]) {
    mr_pipeline_times t = {.n_stages = 1 + (int32_t)(mr_rng_u64(3, 0, counter++) % MAX_STAGES), .stages = stages};
    for (int32_t i = 0; i < t.n_stages; i++)
        stages[i] = random_curve();
    t.output = random_curve();
    if (t.n_stages > 1) {
        t.hops_s = random_in(0, 5e-3);
        t.hops_row_s = random_in(0, 1e-4);
    }
    return t;
}

/* Runs N_ROUNDS tokens of all sequences through the pipeline, step by step: a micro-batch starts its next token when
 * its ids are back, a stage takes one step at a time. The hops are those of the whole way, so they are counted once, at
 * its end. */
static double simulate(const mr_pipeline_times *t, int32_t n, int32_t m) {
    double free_at[MAX_STAGES] = {0}, back_at[64] = {0}, start = 0, end = 0, rows = (double)n / m;
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int32_t k = 0; k < m; k++) {
            double at = back_at[k];
            for (int32_t i = 0; i < t->n_stages; i++) {
                at = larger(at, free_at[i]) + mr_step_times_at(&t->stages[i], rows);
                at += i == t->n_stages - 1 ? mr_step_times_at(&t->output, rows) : 0;
                free_at[i] = at;
            }
            back_at[k] = at + t->hops_s + t->hops_row_s * rows;
        }
        start = round == WARM_UP ? back_at[m - 1] : start;
        end = back_at[m - 1];
    }
    return (end - start) / (N_ROUNDS - 1 - WARM_UP);
}

static void test_formula(void **state) {
    (void)state;
    for (int i = 0; i < 300; i++) {
        mr_step_times stages[MAX_STAGES];
        mr_pipeline_times t = random_pipeline(stages);
        int32_t n = 1 + (int32_t)random_in(0, 64), m = 1 + (int32_t)random_in(0, n < 12 ? n : 12);
        double want = simulate(&t, n, m), got = mr_micro_batches_seconds(&t, n, m);
        if (got < 0.999 * want || got > 1.001 * want)
            fail_msg("case %d: %d sequences, %d micro-batches, %d stages: %g s, the simulation says %g s", i, n, m,
                     t.n_stages, got, want);
    }
}

static void test_best(void **state) {
    (void)state;
    int several = 0;
    for (int i = 0; i < 300; i++) {
        mr_step_times stages[MAX_STAGES];
        mr_pipeline_times t = random_pipeline(stages);
        int32_t n = 1 + (int32_t)random_in(0, 64), best = mr_micro_batches_best(&t, n, 16);
        assert_in_range(best, 1, n < 16 ? n : 16);
        assert_true(t.n_stages > 1 || best == 1);
        for (int32_t m = 1; m <= 16 && m <= n && t.n_stages > 1; m++) {
            double here = mr_micro_batches_cost(&t, n, best), there = mr_micro_batches_cost(&t, n, m);
            double seconds = mr_micro_batches_seconds(&t, n, best);
            assert_true(here <= 1.0101 * there);
            assert_true(m >= best || there > here); /* of equally good numbers, the smallest is chosen */
            /* The preference for short round trips costs little throughput. */
            assert_true(seconds <= 1.07 * mr_micro_batches_seconds(&t, n, m));
        }
        several += best > 1;
    }
    assert_in_range(several, 50, 290);
}

/* A slow link counts as a stage. */
static void test_link(void **state) {
    (void)state;
    const mr_step_times stages[] = {{.n = 1, .rows = {1}, .seconds = {1e-3}}, {.n = 1, .rows = {1}, .seconds = {1e-3}}};
    mr_pipeline_times t = {.n_stages = 2, .stages = stages, .hops_s = 1e-3, .hops_row_s = 5e-3, .link_row_s = 5e-3};
    assert_float_equal(mr_micro_batches_seconds(&t, 8, 2), 2 * 4 * 5e-3, 1e-9);
    assert_float_equal(mr_micro_batches_seconds(&t, 8, 1), 3e-3 + 8 * 5e-3, 1e-9);
}

static void test_prefill(void **state) {
    (void)state;
    const mr_step_times stages[] = {{.n = 2, .rows = {1, 101}, .seconds = {1e-3, 101e-3}},
                                    {.n = 2, .rows = {1, 101}, .seconds = {2e-3, 202e-3}}};
    mr_pipeline_times t = {.n_stages = 2,
                           .stages = stages,
                           .output = {.n = 1, .rows = {1}, .seconds = {7e-3}},
                           .hops_s = 3e-3,
                           .hops_row_s = 1e-4};
    assert_float_equal(mr_prefill_seconds(&t, 10, 32), 10e-3 + 20e-3 + 7e-3 + 3e-3 + 1e-3, 1e-9);
    assert_float_equal(mr_prefill_seconds(&t, 32, 32), 32e-3 + 64e-3 + 7e-3 + 3e-3 + 3.2e-3, 1e-9);
    /* Two full chunks, then the last chunk of 6 rows, which waits for the slower stage. */
    assert_float_equal(mr_prefill_seconds(&t, 70, 32), 2 * 64e-3 + 6e-3 + 12e-3 + 7e-3 + 3e-3 + 0.6e-3, 1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_link),
        cmocka_unit_test(test_prefill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
