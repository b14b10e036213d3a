/* Whether the machine is crowded, from a fake source of waits: when the source is asked, what it takes to change, and
 * which runs say nothing. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_crowd.h"

#include "tests/support/test.h"

static const int64_t MS = 1000000;

/* Threads that waited for so long since the last question. */
typedef struct source {
    int64_t waited_ns;
    int32_t n_asked, n_threads; /* questions, and the threads of the last one */
} source;

static int64_t waited_ns(void *ctx, int32_t n_threads) {
    source *s = ctx;
    int64_t ns = s->waited_ns;
    s->n_asked++;
    s->n_threads = n_threads;
    s->waited_ns = ns < 0 ? ns : 0;
    return ns;
}

/* A run on n threads that takes ns, in which a thread waits for a part of the time. */
static void run(cpu_crowd *crowd, source *s, int32_t n, int64_t ns, double share) {
    s->waited_ns += (int64_t)((double)ns * share);
    cpu_crowd_note(crowd, n, false, ns);
}

static void test_a_question_costs_a_thousandth_of_the_time(void **state) {
    (void)state;
    static const struct {
        int32_t n_threads;
        int64_t run_ns;
        int32_t n_asked; /* in a second */
    } cases[] = {{1, 100000, 50}, {2, 100000, 50}, {64, 100000, 15}, {2, 100 * MS, 10}, {2, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        source s = {0};
        cpu_crowd crowd;
        cpu_crowd_init(&crowd, waited_ns, &s);
        for (int64_t ns = 0; ns < 1000 * MS; ns += cases[i].run_ns ? cases[i].run_ns : MS)
            run(&crowd, &s, cases[i].n_threads, cases[i].run_ns, 0);
        assert_int_equal(s.n_asked, cases[i].n_asked);
        assert_int_equal(s.n_threads, s.n_asked ? cases[i].n_threads : 0);
    }
}

static void test_it_changes_at_a_quarter_and_at_a_tenth(void **state) {
    (void)state;
    source s = {0};
    cpu_crowd crowd;
    cpu_crowd_init(&crowd, waited_ns, &s);
    for (int i = 0; i < 100; i++)
        run(&crowd, &s, 2, 25 * MS, 0.24);
    assert_false(crowd.is_crowded);
    for (int i = 0; i < 100; i++)
        run(&crowd, &s, 2, 25 * MS, 0.26);
    assert_true(crowd.is_crowded);
    for (int i = 0; i < 100; i++)
        run(&crowd, &s, 2, 25 * MS, 0.11);
    assert_true(crowd.is_crowded);
    for (int i = 0; i < 100; i++)
        run(&crowd, &s, 2, 25 * MS, 0.09);
    assert_false(crowd.is_crowded);
    assert_int_equal(crowd.n_changes, 2);
}

/* How soon: a tenth of a second shows that a free machine is crowded now, if there were no calmer runs before. */
static void test_it_changes_soon(void **state) {
    (void)state;
    source s = {0};
    cpu_crowd crowd;
    cpu_crowd_init(&crowd, waited_ns, &s);
    for (int i = 0; i < 3; i++)
        run(&crowd, &s, 2, 25 * MS, 0.9);
    assert_false(crowd.is_crowded);
    run(&crowd, &s, 2, 25 * MS, 0.9);
    assert_true(crowd.is_crowded);
    for (int i = 0; i < 1000; i++)
        run(&crowd, &s, 2, 130 * MS, 0.6);
    int n = 0;
    for (; crowd.is_crowded; n++)
        run(&crowd, &s, 2, 45 * MS, 0);
    assert_true(n * 45 * MS <= 1500 * MS);
    for (int i = 0; i < 1000; i++)
        run(&crowd, &s, 2, 25 * MS, 0);
    for (n = 0; !crowd.is_crowded; n++)
        run(&crowd, &s, 2, 130 * MS, 0.6);
    assert_true(n * 130 * MS <= 800 * MS);
}

static void test_some_runs_say_nothing(void **state) {
    (void)state;
    source s = {0};
    cpu_crowd crowd;
    cpu_crowd_init(&crowd, waited_ns, &s);
    for (int i = 0; i < 100; i++) { /* trials */
        s.waited_ns = 100 * MS;
        cpu_crowd_note(&crowd, 1, true, 100 * MS);
    }
    assert_int_equal(s.n_asked, 100);
    for (int i = 0; i < 1000; i++) /* different numbers of threads between two questions, which ask all threads */
        run(&crowd, &s, 1 + i % 2, 10 * MS, 1);
    assert_int_equal(s.n_threads, INT32_MAX);
    for (int i = 0; i < 100; i++) { /* unknown waits */
        s.waited_ns = -1;
        cpu_crowd_note(&crowd, 2, false, 100 * MS);
    }
    assert_false(crowd.is_crowded);
    assert_true(crowd.ns == 0);
    cpu_crowd_init(&crowd, NULL, NULL);
    for (int i = 0; i < 100; i++)
        cpu_crowd_note(&crowd, 2, false, 100 * MS);
    assert_false(crowd.is_crowded);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_question_costs_a_thousandth_of_the_time),
        cmocka_unit_test(test_it_changes_at_a_quarter_and_at_a_tenth),
        cmocka_unit_test(test_it_changes_soon),
        cmocka_unit_test(test_some_runs_say_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
