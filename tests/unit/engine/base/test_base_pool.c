/* The thread pool: every task runs once, groups run one after another, sleeping threads are woken, and the pool says
 * how long its threads waited for a core. */
// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/pool.h"
#include "engine/base/thread.h"
#include "tests/support/test.h"

enum { MAX_THREADS = 8 };

typedef struct shared {
    mr_pool *pool;
    int64_t sum[MAX_THREADS]; /* each has one writer and is not atomic: TSan checks that the pool orders the writes */
    int n_threads[MAX_THREADS];
    float tiny[MAX_THREADS];
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
        int cpu_ids[MAX_THREADS] = {0}; /* all threads on the first CPU, in every second round */
        assert_int_equal(mr_pool_create(n, n % 2 ? cpu_ids : NULL, &s.pool, NULL), MR_OK);
        assert_int_equal(mr_pool_n_threads(s.pool), n);
        uint64_t n_allocs = mr_mem_get_stats().n_allocs;
        for (int64_t run = 1; run <= 300; run++) {
            mr_pool_run_each(s.pool, add_one, &s);
            for (int i = 0; i < n; i++) {
                assert_int_equal(s.sum[i], run);
                assert_int_equal(s.n_threads[i], n);
            }
        }
        assert_int_equal(mr_mem_get_stats().n_allocs, n_allocs);
        mr_pool_destroy(s.pool);
    }
}

enum { MAX_TASKS = 6 };

/* Groups of 0 to MAX_TASKS tasks. Each task writes its slot, and reads those of all tasks of the group before. */
typedef struct groups {
    int32_t n_threads;      /* number of threads that may take part */
    int slot[3][MAX_TASKS]; /* a group without tasks may stand between two groups with tasks */
    int n_runs[MAX_TASKS];
    int32_t n_counted, n_progress; /* one writer at a time, not atomic */
    atomic_int n_bad;
} groups;

static int32_t tasks_of(int32_t group) {
    return (group * 5 + 1) % (MAX_TASKS + 1);
}

static int32_t count_tasks(void *ctx, int32_t group) {
    groups *g = ctx;
    if (g->n_counted++ != group)
        atomic_fetch_add(&g->n_bad, 1);
    return tasks_of(group);
}

static void run_task(void *ctx, int32_t group, int32_t task, int thread_idx) {
    groups *g = ctx;
    int32_t before = group;
    while (before > 0 && tasks_of(--before) == 0)
        ;
    for (int32_t i = 0; before < group && i < tasks_of(before); i++)
        if (g->slot[before % 3][i] != before + 1)
            atomic_fetch_add(&g->n_bad, 1);
    if (thread_idx < 0 || thread_idx >= g->n_threads || task < 0 || task >= tasks_of(group))
        atomic_fetch_add(&g->n_bad, 1);
    g->slot[group % 3][task] = group + 1;
    g->n_runs[task]++;
}

static void count_progress(void *ctx) {
    ((groups *)ctx)->n_progress++;
}

static void test_groups_follow_each_other(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_THREADS; n++) {
        mr_pool *pool = NULL;
        int32_t n_groups = n <= 2 ? 6000 : 700;
        assert_int_equal(mr_pool_create(n, NULL, &pool, NULL), MR_OK);
        uint64_t n_allocs = mr_mem_get_stats().n_allocs;
        for (int32_t most = 0; most <= n + 1; most++) {
            groups g = {.n_threads = most == 0 || most > n ? n : most};
            int expected[MAX_TASKS] = {0};
            mr_pool_run(pool, &(mr_pool_job){.n_groups = n_groups,
                                             .n_threads = most,
                                             .count = count_tasks,
                                             .run = run_task,
                                             .progress = count_progress,
                                             .ctx = &g});
            for (int32_t i = 0; i < n_groups; i++)
                for (int32_t task = 0; task < tasks_of(i); task++)
                    expected[task]++;
            assert_memory_equal(g.n_runs, expected, sizeof expected);
            assert_int_equal(g.n_counted, n_groups);
            assert_int_equal(g.n_progress, n_groups);
            assert_int_equal(atomic_load(&g.n_bad), 0);
        }
        mr_pool_run(pool, &(mr_pool_job){.count = count_tasks, .run = run_task}); /* no group */
        assert_int_equal(mr_mem_get_stats().n_allocs, n_allocs);
        mr_pool_destroy(pool);
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
        mr_pool_run_each(s.pool, slow_worker, &s);
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
        mr_pool_run_each(s.pool, square_of_tiny, &s);
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

enum { MANY_THREADS = MR_POOL_WATCHED + 2 };

/* The numbers of the threads, and a folder in place of the system's. */
typedef struct waits {
    mr_pool *pool;
    int32_t ids[MANY_THREADS];
    char tasks[64];
    int64_t first, second; /* what another caller is told */
} waits;

static void note_id(void *ctx, int thread_idx, int n_threads) {
    (void)n_threads;
    ((waits *)ctx)->ids[thread_idx] = mr_thread_id();
}

static void put_wait(const waits *w, int32_t thread_id, long ns) {
    char path[128];
    snprintf(path, sizeof path, "%s/%d", w->tasks, (int)thread_id);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%d/schedstat", w->tasks, (int)thread_id);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "5 %ld 6\n", ns);
    fclose(f);
}

static void begin_waits(waits *w, int n_threads) {
    *w = (waits){.tasks = "/tmp/mr_test_pool_XXXXXX"};
    assert_non_null(mkdtemp(w->tasks));
    assert_int_equal(mr_pool_create(n_threads, NULL, &w->pool, NULL), MR_OK);
    mr_pool_run_each(w->pool, note_id, w);
    mr_pool_set_tasks(w->pool, w->tasks);
}

static void end_waits(waits *w) {
    char command[96];
    mr_pool_destroy(w->pool);
    snprintf(command, sizeof command, "rm -r '%s'", w->tasks);
    assert_int_equal(system(command), 0);
}

static void ask_as_another_caller(void *ctx) {
    waits *w = ctx;
    put_wait(w, mr_thread_id(), 70);
    w->first = mr_pool_waited_ns(w->pool, 1);
    put_wait(w, mr_thread_id(), 75);
    w->second = mr_pool_waited_ns(w->pool, 1);
}

static void test_the_longest_wait_for_a_core(void **state) {
    (void)state;
    waits w;
    mr_thread *other = NULL;
    begin_waits(&w, 3);
    uint64_t n_allocs = mr_mem_get_stats().n_allocs;
    assert_int_equal(mr_pool_waited_ns(w.pool, 3), -1); /* no files */
    for (int i = 0; i < 3; i++)
        put_wait(&w, w.ids[i], 1000 * i);
    assert_int_equal(mr_pool_waited_ns(w.pool, 3), -1); /* the first question */
    assert_int_equal(mr_pool_waited_ns(w.pool, 3), 0);
    put_wait(&w, w.ids[0], 30);
    put_wait(&w, w.ids[1], 1020);
    put_wait(&w, w.ids[2], 2040);
    assert_int_equal(mr_pool_waited_ns(w.pool, 2), 30);
    assert_int_equal(mr_pool_waited_ns(w.pool, INT32_MAX), 40);
    assert_int_equal(mr_pool_waited_ns(w.pool, 3), 0);
    assert_int_equal(mr_mem_get_stats().n_allocs, n_allocs);
    assert_int_equal(mr_thread_create("caller", 0, ask_as_another_caller, &w, &other, NULL), MR_OK);
    mr_thread_join(other);
    assert_int_equal(w.first, -1);
    assert_int_equal(w.second, 5);
    assert_int_equal(mr_pool_waited_ns(w.pool, 3), -1); /* this thread is the caller again */
    put_wait(&w, w.ids[0], 37);
    assert_int_equal(mr_pool_waited_ns(w.pool, 3), 7);
    mr_pool_set_tasks(w.pool, MR_THREAD_TASKS);
    mr_pool_run_each(w.pool, note_id, &w);
    assert_true(mr_pool_waited_ns(w.pool, 3) >= -1); /* whatever the system says */
    end_waits(&w);
}

/* Of many threads only the first are asked. */
static void test_the_waits_of_many_threads(void **state) {
    (void)state;
    waits w;
    begin_waits(&w, MANY_THREADS);
    for (int i = 0; i < MR_POOL_WATCHED; i++)
        put_wait(&w, w.ids[i], i);
    assert_int_equal(mr_pool_waited_ns(w.pool, MANY_THREADS), -1);
    put_wait(&w, w.ids[MR_POOL_WATCHED - 1], MR_POOL_WATCHED + 10);
    assert_int_equal(mr_pool_waited_ns(w.pool, MANY_THREADS), 11);
    end_waits(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_thread_runs_once_for_each_run),
        cmocka_unit_test(test_groups_follow_each_other),
        cmocka_unit_test(test_parked_threads_wake),
        cmocka_unit_test(test_denormals_are_flushed_in_all_threads),
        cmocka_unit_test(test_bad_counts_and_failures),
        cmocka_unit_test(test_the_longest_wait_for_a_core),
        cmocka_unit_test(test_the_waits_of_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
