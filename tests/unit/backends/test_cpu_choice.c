/* The choice of the number of threads from the times of a program's runs. There is no clock: each test sets how long
 * a run takes with a number of threads. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_choice.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

enum { MOST = 64 };
static const double MS = 1e6, S = 1e9;

/* A machine: nanoseconds of a run on n threads, at the time now_ns. */
typedef struct machine {
    double (*run_ns)(struct machine *m, int32_t n, double now_ns);
    double now_ns, changes_ns;
    rng r;
    double slice_left_ns;
    double used_ns[MOST + 1]; /* time used by each number of threads */
    int32_t n_runs, n_changes;
} machine;

/* Runs until the machine's time is end_ns, and returns the number of threads of the last run. */
static int32_t run_until(machine *m, cpu_choice *c, double end_ns) {
    int32_t n = 0;
    while (m->now_ns < end_ns) {
        int32_t before = n;
        n = cpu_choice_next(c);
        m->n_changes += before != 0 && n != before;
        double ns = m->run_ns(m, n, m->now_ns);
        cpu_choice_note(c, (int64_t)ns);
        m->now_ns += ns;
        m->used_ns[n] += ns;
        m->n_runs++;
    }
    return n;
}

/* Of the first program of a backend with so many threads. */
static void begin(cpu_choice *c, cpu_choice_past *past, int32_t most) {
    cpu_choice_past_init(past, most);
    cpu_choice_init(c, past);
}

/* Small groups: two threads wait for each other most of the time. */
static double small(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)now_ns;
    return n == 1 ? 0.2 * MS : 0.6 * MS;
}

static void test_one_thread_where_groups_are_small(void **state) {
    (void)state;
    machine m = {.run_ns = small};
    cpu_choice c;
    cpu_choice_past past;
    begin(&c, &past, 2);
    assert_int_equal(cpu_choice_next(&c), 2);
    (void)run_until(&m, &c, 10 * MS);
    assert_true(m.used_ns[2] <= 3 * MS);
    (void)run_until(&m, &c, 10 * S);
    assert_true(m.used_ns[2] <= 0.03 * m.now_ns);
    assert_true(m.used_ns[2] > 0.001 * m.now_ns); /* the slower choice is still tried from time to time */
}

/* A model of a billion parameters: one sequence, and a chunk of a prompt. */
static double large(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)now_ns;
    return n == 1 ? 45 * MS : 25 * MS;
}

static double prompt(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)now_ns;
    return n == 1 ? 700 * MS : 350 * MS;
}

static void test_trials_cost_little_where_all_threads_help(void **state) {
    (void)state;
    machine m = {.run_ns = large};
    cpu_choice c;
    cpu_choice_past past;
    begin(&c, &past, 2);
    (void)run_until(&m, &c, 20 * S);
    assert_true(m.n_runs >= 0.985 * m.now_ns / (25 * MS));
    assert_true(m.used_ns[1] > 0);
    m = (machine){.run_ns = prompt};
    begin(&c, &past, 2);
    (void)run_until(&m, &c, 16 * 350 * MS); /* the time of a prompt of 2,048 tokens */
    assert_true(m.used_ns[1] == 0);
}

/* Other programs come, and leave again. */
static double visited(machine *m, int32_t n, double now_ns) {
    bool is_free = now_ns < 3 * S || now_ns >= 10 * S;
    (void)m;
    return n == 1 ? 1.8 * MS : is_free ? 1 * MS : 6 * MS;
}

static void test_it_goes_back_when_the_machine_is_free_again(void **state) {
    (void)state;
    machine m = {.run_ns = visited};
    cpu_choice c;
    cpu_choice_past past;
    begin(&c, &past, 2);
    (void)run_until(&m, &c, 3 * S);
    assert_true(m.used_ns[1] <= 0.05 * m.now_ns); /* about 40 ms are lost at the beginning, and little later */
    m = (machine){.run_ns = visited, .now_ns = m.now_ns};
    (void)run_until(&m, &c, 10 * S);
    assert_true(m.used_ns[1] >= 0.9 * 7 * S);
    m = (machine){.run_ns = visited, .now_ns = m.now_ns};
    (void)run_until(&m, &c, 20 * S);
    assert_true(m.used_ns[2] >= 0.9 * 10 * S);
}

static double even(machine *m, int32_t n, double now_ns) {
    (void)now_ns;
    double noise = 1 + 0.03 * (double)rng_unit(&m->r);
    return noise * (n == 1 ? 1.01 * MS : 1 * MS);
}

static void test_it_does_not_flap_where_numbers_are_alike(void **state) {
    (void)state;
    machine m = {.run_ns = even};
    cpu_choice c;
    cpu_choice_past past;
    begin(&c, &past, 2);
    for (double end_ns = S; end_ns <= 20 * S; end_ns += S) {
        (void)run_until(&m, &c, end_ns);
        assert_int_equal(c.level, 1);
    }
}

/* Time slices of 3 ms. Behind a slice, other programs have the core for some milliseconds. With two threads, either
 * thread may be the one that waits. */
static double sliced(machine *m, int32_t n, double now_ns) {
    double need_ns = n == 1 ? 0.2 * MS : 0.3 * MS, ns = need_ns;
    (void)now_ns;
    for (m->slice_left_ns -= n * need_ns; m->slice_left_ns < 0; m->slice_left_ns += 3 * MS) {
        ns += (5 + 3 * (double)rng_unit(&m->r)) * MS;
    }
    return ns;
}

static void test_it_finds_the_better_number_among_time_slices(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        machine m = {.run_ns = sliced, .r = {seed}}, alone = {.run_ns = sliced, .r = {seed + 100}};
        cpu_choice c, one;
        cpu_choice_past past, past_of_one;
        begin(&c, &past, 2);
        begin(&one, &past_of_one, 1);
        (void)run_until(&alone, &one, 5 * S);
        (void)run_until(&m, &c, 5 * S);
        if (m.n_runs < 0.9 * alone.n_runs)
            fail_msg("seed %d: %d runs, %d on one thread", (int)seed, (int)m.n_runs, (int)alone.n_runs);
    }
}

static double best_at_8(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)now_ns;
    return (1.0 / (n < 8 ? n : 8) + 0.01 * n) * MS;
}

static void test_many_threads(void **state) {
    (void)state;
    for (int32_t most = 1; most <= MOST; most++) {
        machine m = {.run_ns = best_at_8};
        cpu_choice c;
        cpu_choice_past past;
        begin(&c, &past, most);
        assert_int_equal(cpu_choice_next(&c), most);
        (void)run_until(&m, &c, 3 * S);
        double best_ns = best_at_8(&m, most, 0);
        for (int32_t n = most / 2; n >= 1; n /= 2)
            best_ns = best_at_8(&m, n, 0) < best_ns ? best_at_8(&m, n, 0) : best_ns;
        if (m.n_runs < 0.92 * m.now_ns / best_ns)
            fail_msg("%d threads: %d runs of %.0f", (int)most, (int)m.n_runs, m.now_ns / best_ns);
    }
}

/* A second program begins as the first one runs by now, and moves on by its own times. */
static void test_the_next_program_begins_where_the_last_one_is(void **state) {
    (void)state;
    machine m = {.run_ns = small};
    cpu_choice c, next;
    cpu_choice_past past;
    begin(&c, &past, 2);
    (void)run_until(&m, &c, 10 * S);
    cpu_choice_init(&next, &past);
    assert_int_equal(cpu_choice_next(&next), 1);
    m = (machine){.run_ns = prompt};
    (void)run_until(&m, &next, 10 * S);
    assert_true(m.used_ns[1] <= 700 * MS);
    assert_int_equal(cpu_choice_next(&c), 1);
}

/* A frozen clock: every run takes no time. */
static void test_without_time_it_stays(void **state) {
    (void)state;
    cpu_choice c;
    cpu_choice_past past;
    begin(&c, &past, 6);
    for (int i = 0; i < 10000; i++) {
        assert_int_equal(cpu_choice_next(&c), 6);
        cpu_choice_note(&c, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_thread_where_groups_are_small),
        cmocka_unit_test(test_trials_cost_little_where_all_threads_help),
        cmocka_unit_test(test_it_goes_back_when_the_machine_is_free_again),
        cmocka_unit_test(test_it_does_not_flap_where_numbers_are_alike),
        cmocka_unit_test(test_it_finds_the_better_number_among_time_slices),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_the_next_program_begins_where_the_last_one_is),
        cmocka_unit_test(test_without_time_it_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
