/* Threads and conditions: name, stack and floating-point modes, deadlines, and a failed start. */
// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thread_has_its_name_stack_and_modes),
        cmocka_unit_test(test_failure_to_start),
        cmocka_unit_test(test_conditions_and_deadlines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
