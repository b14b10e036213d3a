/* The chunks of a prompt against other ways to cut the prompt, and the number of rows of a step against the time of
 * the step. */
// SPDX-License-Identifier: Apache-2.0
#include <stdbool.h>

#include "coordinator/job/step_budget.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"

enum { MAX_STAGES = 6, MOST = 512 };

static uint64_t counter;

static double random_in(double low, double high) {
    return low + (high - low) * (double)(mr_rng_u64(5, 0, counter++) % 1000000) / 1e6;
}

static mr_step_times line(double fixed, double row) {
    return (mr_step_times){.n = 2, .rows = {1, 1001}, .seconds = {fixed + row, fixed + 1001 * row}};
}

static mr_pipeline_times random_pipeline(mr_step_times stages[MAX_STAGES], bool equal) {
    mr_pipeline_times t = {.n_stages = 1 + (int32_t)random_in(0, MAX_STAGES), .stages = stages};
    double fixed = random_in(0, 0.02), row = random_in(0.001, 0.002);
    for (int32_t i = 0; i < t.n_stages; i++)
        stages[i] = equal ? line(fixed, row) : line(random_in(0, 0.02), random_in(0.001, 0.002));
    return t;
}

/* All rows are issued, none twice, in chunks of the allowed size. */
static void check_chunks(const mr_pipeline_times *t, int64_t n, mr_prefill_cut cut) {
    int64_t done = 0;
    while (done < n) {
        int32_t chunk = mr_prefill_chunk(t, cut, done, n - done, MOST);
        assert_in_range(chunk, 1, MOST);
        assert_true(chunk >= cut.least || chunk == n - done);
        done += chunk;
    }
    assert_int_equal(done, n);
}

/* Seconds for n rows in equal chunks and a last one of what is left: each stage takes one chunk at a time, in order. */
static double equal_chunks(const mr_pipeline_times *t, int64_t n, int64_t chunk) {
    double done_at[MAX_STAGES] = {0};
    for (; n > 0; n -= chunk)
        for (int32_t i = 0; i < t->n_stages; i++) {
            double input_at = i > 0 ? done_at[i - 1] : 0, start = input_at > done_at[i] ? input_at : done_at[i];
            done_at[i] = start + mr_step_times_at(&t->stages[i], (double)(n < chunk ? n : chunk));
        }
    return done_at[t->n_stages - 1];
}

/* Never much slower than the best of all equal chunks, and the whole prompt at once in one stage. */
static void test_chunks(void **state) {
    (void)state;
    int better = 0;
    for (int i = 0; i < 300; i++) {
        mr_step_times stages[MAX_STAGES];
        mr_pipeline_times t = random_pipeline(stages, i % 2);
        int64_t n = 1 + (int64_t)random_in(0, 3000);
        mr_prefill_cut cut = mr_prefill_cut_best(&t, n, MOST);
        assert_in_range(cut.least, 16, MOST);
        assert_true(t.n_stages > 1 || cut.least == MOST);
        check_chunks(&t, n, cut);
        double best = 1e9, got = mr_prefill_cut_seconds(&t, cut, n, MOST);
        for (int32_t chunk = 16; chunk <= MOST; chunk *= 2) {
            double s = equal_chunks(&t, n, chunk);
            best = s < best ? s : best;
        }
        if (got > 1.02 * best)
            fail_msg("case %d: %d stages, %d rows, least chunk %d: %g s, equal chunks take %g s", i, t.n_stages, (int)n,
                     cut.least, got, best);
        better += got < 0.98 * best;
    }
    assert_in_range(better, 10, 290); /* if the stages differ, chunks that shrink or grow are better */
}

/* A slow first stage: large chunks come first, small chunks last. A slow last stage: the other way round. */
static void test_uneven(void **state) {
    (void)state;
    const mr_step_times front[] = {line(0.005, 0.002), line(0.005, 0.001)}, end[] = {front[1], front[0]};
    mr_pipeline_times t = {.n_stages = 2, .stages = front};
    const mr_prefill_cut cut = {.least = 32, .tapers = true}, flat = {.least = 32};
    assert_int_equal(mr_prefill_chunk(&t, cut, 0, 2000, MOST), MOST);
    assert_in_range(mr_prefill_chunk(&t, cut, 1900, 100, MOST), 50, 65);
    assert_int_equal(mr_prefill_chunk(&t, cut, 1960, 40, MOST), 40);
    assert_int_equal(mr_prefill_chunk(&t, flat, 0, 2000, MOST), 32);
    t.stages = end;
    assert_int_equal(mr_prefill_chunk(&t, cut, 0, 2000, MOST), 32);
    assert_in_range(mr_prefill_chunk(&t, cut, 100, 1900, MOST), 50, 65);
    assert_int_equal(mr_prefill_chunk(&t, cut, 1900, 100, MOST), 100);
}

static void test_rows_within(void **state) {
    (void)state;
    for (int i = 0; i < 300; i++) {
        mr_step_times stages[MAX_STAGES];
        mr_pipeline_times t = random_pipeline(stages, false);
        int32_t n = 1 + (int32_t)random_in(0, 64), m = 1 + (int32_t)random_in(0, 8), least = (n + m - 1) / m;
        double seconds = random_in(0.5, 4) * mr_micro_batches_seconds(&t, least * m, m);
        int32_t rows = mr_step_rows_within(&t, n, m, seconds, MOST);
        assert_in_range(rows, least, MOST);
        assert_true(rows == least || mr_micro_batches_seconds(&t, rows * m, m) <= seconds);
        assert_true(rows == MOST || mr_micro_batches_seconds(&t, (rows + 1) * m, m) > seconds);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_uneven),
        cmocka_unit_test(test_rows_within),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
