// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/pool.h"

enum { MAX_THREADS = 8 };

typedef struct shared {
    mr_pool *pool;
    int64_t sum[MAX_THREADS]; /* one writer each, not atomic: TSan checks the pool's ordering */
    int n_threads[MAX_THREADS];
    float tiny[MAX_THREADS];
    int n_rounds;
    atomic_int n_bad;
    int slot[2][MAX_THREADS];
} shared;

static void add_one(void *ctx, int thread_idx, int n_threads) {
    shared *s = ctx;
    s->sum[thread_idx]++;
    s->n_threads[thread_idx] = n_threads;
}

static void test_every_thread_runs_once_for_each_run(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_THREADS; n++) {
        shared s = {0};
        int cpu_ids[MAX_THREADS] = {0}; /* all on the first CPU, in every second round */
        assert_int_equal(mr_pool_create(n, n % 2 ? cpu_ids : NULL, &s.pool, NULL), MR_OK);
        assert_int_equal(mr_pool_n_threads(s.pool), n);
        uint64_t n_allocs = mr_mem_get_stats().n_allocs;
        for (int64_t run = 1; run <= 300; run++) {
            mr_pool_run(s.pool, add_one, &s);
            for (int i = 0; i < n; i++) {
                assert_int_equal(s.sum[i], run);
                assert_int_equal(s.n_threads[i], n);
            }
        }
        assert_int_equal(mr_mem_get_stats().n_allocs, n_allocs);
        mr_pool_destroy(s.pool);
    }
}

/* In each round every thread writes its slot, and after the barrier reads those of all. */
static void rounds(void *ctx, int thread_idx, int n_threads) {
    shared *s = ctx;
    for (int r = 0; r < s->n_rounds; r++) {
        s->slot[r % 2][thread_idx] = r + 1;
        mr_pool_barrier(s->pool);
        for (int i = 0; i < n_threads; i++)
            if (s->slot[r % 2][i] != r + 1)
                atomic_fetch_add(&s->n_bad, 1);
    }
}

static void test_barrier_separates_rounds(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_THREADS; n *= 2) {
        shared s = {.n_rounds = n <= 2 ? 3000 : 200};
        assert_int_equal(mr_pool_create(n, NULL, &s.pool, NULL), MR_OK);
        for (int run = 0; run < 3; run++)
            mr_pool_run(s.pool, rounds, &s);
        assert_int_equal(atomic_load(&s.n_bad), 0);
        mr_pool_destroy(s.pool);
    }
}

static void spin_until(int64_t end_ns) {
    while (mr_clock_now_ns() < end_ns)
        sched_yield();
}

static void slow_worker(void *ctx, int thread_idx, int n_threads) {
    (void)n_threads;
    if (thread_idx != 0)
        spin_until(mr_clock_now_ns() + 2 * MR_NS_PER_MS);
    add_one(ctx, thread_idx, n_threads);
}

/* Workers sleep between these runs, and the caller sleeps in them: both ways of waking are taken. */
static void test_parked_threads_wake(void **state) {
    (void)state;
    shared s = {0};
    assert_int_equal(mr_pool_create(3, NULL, &s.pool, NULL), MR_OK);
    for (int64_t run = 1; run <= 20; run++) {
        mr_pool_run(s.pool, slow_worker, &s);
        spin_until(mr_clock_now_ns() + MR_NS_PER_MS);
        for (int i = 0; i < 3; i++)
            assert_int_equal(s.sum[i], run);
    }
    mr_pool_destroy(s.pool);
}

static void square_of_tiny(void *ctx, int thread_idx, int n_threads) {
    (void)n_threads;
    volatile float tiny = 1e-30f;
    ((shared *)ctx)->tiny[thread_idx] = tiny * 1e-10f;
}

static void test_denormals_are_flushed_in_all_threads(void **state) {
    (void)state;
#if defined(__x86_64__) || defined(__aarch64__)
    for (int n = 1; n <= 3; n += 2) {
        shared s = {.tiny = {1, 1, 1}};
        assert_int_equal(mr_pool_create(n, NULL, &s.pool, NULL), MR_OK);
        mr_pool_run(s.pool, square_of_tiny, &s);
        for (int i = 0; i < n; i++)
            assert_true(s.tiny[i] == 0.0f);
        mr_pool_destroy(s.pool);
    }
#endif
}

static void test_bad_counts_and_failures(void **state) {
    (void)state;
    mr_pool *pool = NULL;
    mr_err err;
    assert_int_equal(mr_pool_create(0, NULL, &pool, &err), MR_E_INVALID);
    assert_int_equal(mr_pool_create(MR_POOL_MAX_THREADS + 1, NULL, &pool, &err), MR_E_INVALID);
    assert_null(pool);
    mr_status status = MR_E_NO_MEMORY;
    for (int64_t n = 0; status != MR_OK; n++) {
        assert_true(n < 20);
        mr_mem_fail_at(n);
        status = mr_pool_create(4, NULL, &pool, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || (status == MR_E_NO_MEMORY && pool == NULL));
    }
    mr_pool_destroy(pool);
    mr_pool_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_thread_runs_once_for_each_run),
        cmocka_unit_test(test_barrier_separates_rounds),
        cmocka_unit_test(test_parked_threads_wake),
        cmocka_unit_test(test_denormals_are_flushed_in_all_threads),
        cmocka_unit_test(test_bad_counts_and_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
