/* Weights and logits processors one by one, against references that sort. */
// SPDX-License-Identifier: Apache-2.0
#include <float.h>
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/sample/processors.h"
#include "tests/support/test.h"

enum { MAX_N = 3000 };

static float logits[MAX_N];
static int32_t by_rank[MAX_N]; /* ids in the order of the candidates: falling logit, rising id */

static int compare(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (logits[x] != logits[y])
        return logits[x] > logits[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* Logits of some shape, many of them equal where step is large. */
static void make_logits(int32_t n, uint64_t seed, float scale, float step) {
    for (int32_t i = 0; i < n; i++) {
        float x = (mr_rng_f32(seed, 1, (uint64_t)i) + mr_rng_f32(seed, 2, (uint64_t)i) - 1.0f) * scale;
        logits[i] = step > 0 ? floorf(x / step) * step : x;
        by_rank[i] = i;
    }
    qsort(by_rank, (size_t)n, sizeof *by_rank, compare);
}

static mr_sampler_scratch *scratch;

static int setup(void **state) {
    (void)state;
    return mr_sampler_scratch_create(MAX_N, &scratch, NULL) != MR_OK;
}

static int teardown(void **state) {
    (void)state;
    mr_sampler_scratch_destroy(scratch);
    return 0;
}

static candidates all(int32_t n) {
    return (candidates){.scratch = scratch, .n = n, .logits = logits, .max_logit = logits[by_rank[0]]};
}

/* The candidates are the first n_want by rank, in id order. */
static void expect_first(const candidates *c, int32_t n_want) {
    static bool want[MAX_N];
    memset(want, 0, sizeof want);
    for (int32_t r = 0; r < n_want; r++)
        want[by_rank[r]] = true;
    assert_int_equal(c->n, n_want);
    for (int32_t i = 0; i < c->n; i++) {
        int32_t id = candidates_id(c, i);
        assert_true(want[id]);
        assert_true(i == 0 || id > candidates_id(c, i - 1));
        assert_true(c->logits[i] == logits[id]);
    }
}

static const int32_t sizes[] = {1, 2, 31, 32, 33, 63, 64, 65, 100, 1000, MAX_N};
static const float steps[] = {0, 0.5f, 4, 100};

typedef void (*shape_fn)(int32_t n);

/* Runs check for logits of every size and every coarseness. */
static void for_shapes(shape_fn check) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t j = 0; j < sizeof steps / sizeof *steps; j++) {
            make_logits(sizes[i], i * 10 + j, 12, steps[j]);
            check(sizes[i]);
        }
    }
}

static void check_top_k(int32_t n) {
    const int32_t ks[] = {0, 1, 2, 3, 40, n / 2, n - 1, n, n + 1};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        mr_sampler s = {.params = {.top_k = ks[i]}};
        candidates c = all(n);
        process_top_k(&s, &c);
        expect_first(&c, ks[i] <= 0 || ks[i] > n ? n : ks[i]);
        /* The same again with packed candidates. */
        s.params.top_k = 2;
        process_top_k(&s, &c);
        expect_first(&c, c.n);
        assert_true(c.n <= 2 || n == ks[i]);
    }
}

static void test_top_k(void **state) {
    (void)state;
    for_shapes(check_top_k);
}

static void check_top_p(int32_t n) {
    double total = 0;
    for (int32_t i = 0; i < n; i++)
        total += exp((double)logits[i] - (double)logits[by_rank[0]]);
    static const float ps[] = {0, 1e-6f, 0.1f, 0.313f, 0.5f, 0.9f, 0.95f, 0.999f, 1};
    for (size_t i = 0; i < sizeof ps / sizeof *ps; i++) {
        int32_t want = 0;
        double mass = 0, gap = 1;
        while (want < n && mass < (double)ps[i] * total) {
            mass += exp((double)logits[by_rank[want++]] - (double)logits[by_rank[0]]);
            gap = fmin(gap, fabs(mass / total - (double)ps[i]));
        }
        if (gap < 1e-6 && ps[i] < 1)
            continue; /* too close to decide in other arithmetic */
        want = ps[i] == 1 ? n : want ? want : 1;
        mr_sampler s = {.params = {.top_p = ps[i]}};
        candidates c = all(n);
        process_top_p(&s, &c);
        expect_first(&c, want);
    }
}

static void test_top_p(void **state) {
    (void)state;
    for_shapes(check_top_p);
}

static void check_min_p(int32_t n) {
    static const float ps[] = {0, 1e-20f, 0.003f, 0.05f, 0.2f, 0.77f, 1};
    for (size_t i = 0; i < sizeof ps / sizeof *ps; i++) {
        int32_t want = 0;
        while (want < n && exp((double)logits[by_rank[want]] - (double)logits[by_rank[0]]) >= (double)ps[i])
            want++;
        mr_sampler s = {.params = {.min_p = ps[i]}, .log_min_p = ps[i] > 0 ? mr_log((double)ps[i]) : 0};
        candidates c = all(n);
        process_min_p(&s, &c);
        expect_first(&c, want);
    }
}

static void test_min_p(void **state) {
    (void)state;
    for_shapes(check_min_p);
}

static void test_zeros_and_denormals_are_ties(void **state) {
    (void)state;
    mr_thread_set_denormals_flushed(); /* as mr_sampler_sample does */
    for (int32_t i = 0; i < 100; i++)
        logits[i] = i % 3 == 0 ? -0.0f : i % 3 == 1 ? 0.0f : 1e-40f;
    mr_sampler s = {.params = {.top_k = 50, .top_p = 0.5f}};
    candidates c = {.scratch = scratch, .n = 100, .logits = logits};
    process_top_k(&s, &c);
    assert_int_equal(c.n, 50);
    assert_int_equal(candidates_id(&c, 49), 49);
    process_top_p(&s, &c);
    assert_int_equal(c.n, 25);
    assert_int_equal(candidates_id(&c, 24), 24);
}

static void test_infinities(void **state) {
    (void)state;
    for (int32_t i = 0; i < 100; i++)
        logits[i] = i % 10 == 7 ? INFINITY : i % 2 ? -INFINITY : 1.0f;
    mr_sampler s = {.params = {.top_k = 60, .top_p = 0.55f, .min_p = 0.1f}, .log_min_p = mr_log(0.1)};
    candidates c = {.scratch = scratch, .n = 100, .logits = logits, .max_logit = INFINITY};
    process_top_k(&s, &c);
    assert_int_equal(c.n, 60);
    process_min_p(&s, &c);
    assert_int_equal(c.n, 10);
    process_top_p(&s, &c);
    assert_int_equal(c.n, 6);
    assert_int_equal(candidates_id(&c, 5), 57);
}

static void test_max_and_nan(void **state) {
    (void)state;
    for (int32_t n = 1; n <= 100; n++) {
        for (int32_t at = 0; at < n; at++) {
            int32_t id;
            for (int32_t i = 0; i < n; i++)
                logits[i] = -5;
            logits[at] = 3;
            logits[n - 1] = 3;
            assert_true(candidates_max(logits, n, &id) == 3);
            assert_int_equal(id, at);
            logits[at] = NAN;
            (void)candidates_max(logits, n, &id);
            assert_int_equal(id, -1);
        }
    }
}

static void test_weights_are_close_and_the_same_everywhere(void **state) {
    (void)state;
    static uint64_t a[MAX_N], b[MAX_N];
    weights_fn selected = weights_select();
    static const float temperatures[] = {1, 0.7f, 1e-3f, 1e-30f, 100};
    for (size_t t = 0; t < sizeof temperatures / sizeof *temperatures; t++) {
        for (int32_t n = 1; n <= MAX_N; n = n * 2 + 1) {
            make_logits(n, 99 + t, 60, 0);
            if (n > 40) {
                logits[by_rank[n - 1]] = -INFINITY;
                logits[by_rank[n - 2]] = -FLT_MAX;
                logits[by_rank[n - 3]] = -1e-42f;
            }
            float max = logits[by_rank[0]];
            memset(a, 0xff, sizeof a);
            memset(b, 0xff, sizeof b);
            uint64_t sum = weights_baseline(logits, n, max, temperatures[t], a);
            assert_true(selected(logits, n, max, temperatures[t], b) == sum);
            assert_memory_equal(a, b, sizeof a);
            for (int32_t i = 0; i < n; i++) {
                double want = exp(((double)logits[i] - (double)max) / (double)temperatures[t]) * 0x1p40;
                assert_true(fabs((double)a[i] - want) <= 0.5001 + 1e-5 * want);
                sum -= a[i];
            }
            assert_true(sum == 0 && a[by_rank[0]] == UINT64_C(1) << 40);
        }
    }
}

static void test_penalty_changes_each_token_once(void **state) {
    (void)state;
    int32_t window[] = {3, 5, 3, 3, 7};
    for (int32_t i = 0; i < 10; i++)
        logits[i] = i == 5 ? -INFINITY : (float)i - 5;
    mr_sampler s = {.params = {.repeat_penalty = 2, .repeat_last_n = -1},
                    .window = window,
                    .window_count = 5,
                    .window_capacity = 5};
    candidates c = {.scratch = scratch, .n = 10, .logits = logits};
    process_penalty(&s, &c);
    for (int32_t i = 0; i < 10; i++)
        assert_true(c.logits[i] == (i == 3 ? -4.0f : i == 7 ? 1.0f : logits[i]));
    s.window_count = 0;
    c.logits = logits;
    process_penalty(&s, &c);
    assert_ptr_equal(c.logits, logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_min_p),
        cmocka_unit_test(test_zeros_and_denormals_are_ties),
        cmocka_unit_test(test_infinities),
        cmocka_unit_test(test_max_and_nan),
        cmocka_unit_test(test_weights_are_close_and_the_same_everywhere),
        cmocka_unit_test(test_penalty_changes_each_token_once),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
