/* Threads and conditions: name, stack and floating-point modes, deadlines, a failed start, and the time that a thread
 * waited for a core, from files that the test writes. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "tests/support/test.h"

typedef struct seen {
    char name[32];
    bool usr1_blocked;
    float before, after;
    mr_status pin_first, pin_absent;
    int n_cpus_after;
} seen;

static float tiny_product(void) {
    volatile float tiny = 1e-30f;
    return tiny * 1e-10f;
}

static void look_around(void *ctx) {
    seen *s = ctx;
    sigset_t mask;
    pthread_getname_np(pthread_self(), s->name, sizeof s->name);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    s->usr1_blocked = sigismember(&mask, SIGUSR1);
    s->before = tiny_product();
    mr_thread_set_denormals_flushed();
    mr_thread_set_denormals_flushed();
    s->after = tiny_product();
    cpu_set_t cpus;
    s->pin_first = mr_thread_pin(sched_getcpu(), NULL);
    s->n_cpus_after = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 0;
    s->pin_absent = mr_thread_pin(-1, NULL);
}

static void test_a_thread_has_its_name_stack_and_modes(void **state) {
    (void)state;
    static const size_t stacks[] = {0, 1, 100001, 1 << 20};
    for (size_t i = 0; i < 4; i++) {
        seen s = {0};
        mr_thread *t = NULL;
        assert_int_equal(mr_thread_create("a name that is too long", stacks[i], look_around, &s, &t, NULL), MR_OK);
        mr_thread_join(t);
        assert_string_equal(s.name, "a name that is ");
        assert_true(s.usr1_blocked);
        assert_true(s.before > 0.0f);
#if defined(__x86_64__) || defined(__aarch64__)
        assert_true(s.after == 0.0f);
#endif
        assert_int_equal(s.pin_first, MR_OK);
        assert_int_equal(s.n_cpus_after, 1);
        assert_int_equal(s.pin_absent, MR_E_INVALID);
    }
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_false(sigismember(&mask, SIGUSR1));
}

static void test_failure_to_start(void **state) {
    (void)state;
    mr_thread *t = NULL;
    mr_err err;
    mr_mem_fail_at(0);
    assert_int_equal(mr_thread_create("t", 0, look_around, NULL, &t, &err), MR_E_NO_MEMORY);
    mr_mem_fail_at(-1);
    assert_int_equal(mr_thread_create("t", (size_t)1 << 60, look_around, NULL, &t, &err), MR_E_NO_MEMORY);
    assert_null(t);
    mr_thread_join(NULL);
}

typedef struct ping {
    mr_mutex lock;
    mr_cond changed;
    int turn, n_left;
} ping;

static void answer(void *ctx) {
    ping *p = ctx;
    mr_mutex_lock(&p->lock);
    while (p->n_left > 0) {
        if (p->turn == 1) {
            p->turn = 0;
            p->n_left--;
            mr_cond_signal(&p->changed);
        } else {
            (void)mr_cond_wait_until(&p->changed, &p->lock, MR_NEVER);
        }
    }
    mr_mutex_unlock(&p->lock);
}

static void test_conditions_and_deadlines(void **state) {
    (void)state;
    ping p = {.n_left = 200};
    mr_thread *t = NULL;
    mr_mutex_init(&p.lock);
    mr_cond_init(&p.changed);
    assert_int_equal(mr_thread_create("answer", 64 << 10, answer, &p, &t, NULL), MR_OK);
    mr_mutex_lock(&p.lock);
    while (p.n_left > 0) {
        p.turn = 1;
        mr_cond_broadcast(&p.changed);
        while (p.turn == 1)
            (void)mr_cond_wait_until(&p.changed, &p.lock, mr_clock_now_ns() + 100 * MR_NS_PER_S);
    }
    mr_mutex_unlock(&p.lock);
    mr_thread_join(t);

    mr_mutex_lock(&p.lock);
    int64_t start = mr_clock_now_ns();
    while (mr_cond_wait_until(&p.changed, &p.lock, start + 3 * MR_NS_PER_MS))
        ;
    assert_true(mr_clock_now_ns() >= start + 3 * MR_NS_PER_MS);
    while (mr_cond_wait_until(&p.changed, &p.lock, -5))
        ;
    mr_mutex_unlock(&p.lock);
    mr_cond_deinit(&p.changed);
    mr_mutex_deinit(&p.lock);
}

/* Writes the statistics of a thread into the folder tasks, in place of the system. */
static void put_waits(const char *tasks, int thread_id, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%d", tasks, thread_id);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%d/schedstat", tasks, thread_id);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int count_open_files(void) {
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void test_waits_for_a_core(void **state) {
    (void)state;
    static const char *const bad[] = {"", "\n", "7", "7 8", "7 8 x\n", "x y z\n", "0 0 0\n", "7 8 -1\n"};
    char tasks[64] = "/tmp/mr_test_thread_XXXXXX", command[96], long_path[400];
    int n_files = count_open_files();
    uint64_t n_allocs = mr_mem_get_stats().n_allocs;
    mr_thread_watch w = {0};
    assert_non_null(mkdtemp(tasks));
    assert_int_equal(mr_thread_watch_look(&w, tasks, 41), -1); /* no such thread */
    put_waits(tasks, 41, "100 5000000000 3\n");
    assert_int_equal(mr_thread_watch_look(&w, tasks, 41), -1); /* the first look */
    assert_int_equal(mr_thread_watch_look(&w, tasks, 41), 0);
    put_waits(tasks, 41, "200 5000000700 4\n");
    assert_int_equal(mr_thread_watch_look(&w, tasks, 41), 700);
    assert_int_equal(count_open_files(), n_files + 1);
    put_waits(tasks, 41, "200 4000000000 5\n"); /* backwards */
    assert_int_equal(mr_thread_watch_look(&w, tasks, 41), -1);
    put_waits(tasks, 41, "200 4000000009 5\n");
    assert_int_equal(mr_thread_watch_look(&w, tasks, 41), 9);
    put_waits(tasks, 42, "200 4000000500 5\n"); /* another thread */
    assert_int_equal(mr_thread_watch_look(&w, tasks, 42), -1);
    put_waits(tasks, 42, "200 4000000501 5\n");
    assert_int_equal(mr_thread_watch_look(&w, tasks, 42), 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_waits(tasks, 42, bad[i]);
        assert_int_equal(mr_thread_watch_look(&w, tasks, 42), -1);
        assert_int_equal(count_open_files(), n_files);
        put_waits(tasks, 42, "200 600 5\n"); /* and good again */
        assert_int_equal(mr_thread_watch_look(&w, tasks, 42), -1);
        assert_int_equal(mr_thread_watch_look(&w, tasks, 42), 0);
    }
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = 0;
    assert_int_equal(mr_thread_watch_look(&w, long_path, 41), -1);
    assert_int_equal(count_open_files(), n_files);
    assert_int_equal(mr_thread_watch_look(&w, tasks, 42), -1);
    assert_int_equal(mr_thread_watch_look(&w, tasks, 42), 0);
    mr_thread_watch_deinit(&w);
    mr_thread_watch_deinit(&w);
    assert_int_equal(count_open_files(), n_files);
    assert_int_equal(mr_mem_get_stats().n_allocs, n_allocs);
    snprintf(command, sizeof command, "rm -r '%s'", tasks);
    assert_int_equal(system(command), 0);
}

/* A kernel that counts says so for this thread, too. */
static void test_waits_of_this_thread(void **state) {
    (void)state;
    mr_thread_watch w = {0};
    unsigned long n_turns = 0;
    FILE *f = fopen("/proc/thread-self/schedstat", "r");
    bool counts = f && fscanf(f, "%*s %*s %lu", &n_turns) == 1 && n_turns > 0;
    if (f)
        fclose(f);
    assert_int_equal(mr_thread_watch_look(&w, MR_THREAD_TASKS, mr_thread_id()), -1);
    sched_yield();
    int64_t ns = mr_thread_watch_look(&w, MR_THREAD_TASKS, mr_thread_id());
    assert_true(counts ? ns >= 0 : ns == -1);
    mr_thread_watch_deinit(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thread_has_its_name_stack_and_modes),
        cmocka_unit_test(test_failure_to_start),
        cmocka_unit_test(test_conditions_and_deadlines),
        cmocka_unit_test(test_waits_for_a_core),
        cmocka_unit_test(test_waits_of_this_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
