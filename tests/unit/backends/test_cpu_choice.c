/* The choice of the number of threads from the times of a program's runs, and from the time that threads waited for a
 * core. There is no clock: each test sets how long a run takes with a number of threads, and which part of it a thread
 * waits. */
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
    int32_t n_used[MOST + 1]; /* runs on each number of threads */
    int32_t n_runs, n_changes;
    /* The part of a run on n threads that a thread waits for a core. waits_ns: since the last question. */
    double (*wait_share)(struct machine *m, int32_t n, double now_ns);
    double waits_ns;
    int32_t n_questions;
} machine;

static int64_t waited_ns(void *ctx, int32_t n_threads) {
    machine *m = ctx;
    (void)n_threads;
    int64_t ns = (int64_t)m->waits_ns;
    m->waits_ns = 0;
    m->n_questions++;
    return ns;
}

static int64_t waits_unknown(void *ctx, int32_t n_threads) {
    ((machine *)ctx)->n_questions++;
    (void)n_threads;
    return -1;
}

/* Runs until the machine's time is end_ns, and returns the number of threads of the last run. */
static int32_t run_until(machine *m, cpu_choice *c, double end_ns) {
    int32_t n = 0;
    while (m->now_ns < end_ns) {
        int32_t before = n;
        n = cpu_choice_next(c);
        m->n_changes += before != 0 && n != before;
        double ns = m->run_ns(m, n, m->now_ns);
        if (m->wait_share)
            m->waits_ns += ns * m->wait_share(m, n, m->now_ns);
        cpu_choice_note(c, (int64_t)ns);
        m->now_ns += ns;
        m->used_ns[n] += ns;
        m->n_used[n]++;
        m->n_runs++;
    }
    return n;
}

/* Of the first program of a backend with so many threads. */
static void begin(cpu_choice *c, cpu_choice_past *past, int32_t most) {
    cpu_choice_past_init(past, most, NULL, NULL);
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

/* --- A crowded machine ------------------------------------------------------------------------------------------- */

/* The same, where the system says how long threads wait. */
static void begin_watched(machine *m, cpu_choice *c, cpu_choice_past *past, int32_t most) {
    cpu_choice_past_init(past, most, waited_ns, m);
    cpu_choice_init(c, past);
}

static double most_of_it(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)n;
    (void)now_ns;
    return 0.6;
}

static double nothing(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)n;
    (void)now_ns;
    return 0;
}

/* A model of a billion parameters beside four busy processes: a run takes half more or less than usual. */
static double noisy(machine *m, double ns) {
    return ns * (1 + 0.5 * (double)rng_unit(&m->r));
}

static double one_is_better(machine *m, int32_t n, double now_ns) {
    (void)now_ns;
    return noisy(m, n == 1 ? 120 * MS : 150 * MS);
}

static double two_are_better(machine *m, int32_t n, double now_ns) {
    (void)now_ns;
    return noisy(m, n == 1 ? 150 * MS : 120 * MS);
}

static double either_is_good(machine *m, int32_t n, double now_ns) {
    (void)n;
    (void)now_ns;
    return noisy(m, 130 * MS);
}

/* Runs for 20 s with each of many seeds. Returns the mean number of runs, relative to runs of best_ns. */
static double speed_when_crowded(double (*run_ns)(machine *, int32_t, double), double best_ns, cpu_crowd_fn *source) {
    enum { SEEDS = 60 };
    double sum = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        machine m = {.run_ns = run_ns, .wait_share = most_of_it, .r = {seed}};
        cpu_choice c;
        cpu_choice_past past;
        cpu_choice_past_init(&past, 2, source, &m);
        cpu_choice_init(&c, &past);
        (void)run_until(&m, &c, 20 * S);
        sum += m.n_runs * best_ns / m.now_ns;
    }
    return sum / SEEDS;
}

static void test_a_large_model_finds_the_better_number_when_crowded(void **state) {
    (void)state;
    double one = speed_when_crowded(one_is_better, 120 * MS, waited_ns);
    double two = speed_when_crowded(two_are_better, 120 * MS, waited_ns);
    double either = speed_when_crowded(either_is_good, 130 * MS, waited_ns);
    print_message("of the better number: %.3f, %.3f, %.3f\n", one, two, either);
    assert_true(one >= 0.95);
    assert_true(two >= 0.95);
    assert_true(either >= 0.98);
    /* What the times of runs alone find: too little, too late. */
    assert_true(speed_when_crowded(one_is_better, 120 * MS, NULL) < 0.85);
}

/* One thread is a bit slower, or so slow that its first run shows it. */
static double one_is_slower(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)now_ns;
    return n == 1 ? 170 * MS : 130 * MS;
}

static double one_is_bad(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)now_ns;
    return n == 1 ? 600 * MS : 130 * MS;
}

static void test_the_first_trial_has_three_runs_or_their_time(void **state) {
    (void)state;
    static const struct {
        double (*run_ns)(machine *, int32_t, double);
        int32_t n_runs;
    } cases[] = {{one_is_slower, 3}, {one_is_bad, 1}};
    for (int i = 0; i < 2; i++) {
        machine m = {.run_ns = cases[i].run_ns, .wait_share = most_of_it};
        cpu_choice c;
        cpu_choice_past past;
        begin_watched(&m, &c, &past, 2);
        for (int run = 0; run < 4; run++) /* one tells that it is crowded, and three show how long a run takes */
            (void)run_until(&m, &c, m.now_ns + 1);
        assert_int_equal(m.n_used[2], 4);
        (void)run_until(&m, &c, m.now_ns + S);
        assert_int_equal(m.n_used[1], cases[i].n_runs);
        (void)run_until(&m, &c, 10 * S);
        assert_int_equal(m.n_used[1], cases[i].n_runs); /* all further trials may lose one percent */
        (void)run_until(&m, &c, 500 * S);
        assert_true(m.n_used[1] > cases[i].n_runs);
        assert_true(m.n_runs >= 0.985 * m.now_ns / (130 * MS));
    }
}

/* A model so large that few runs are made between two times at which sums are halved. */
static double very_large(machine *m, int32_t n, double now_ns) {
    (void)now_ns;
    return noisy(m, n == 1 ? 600 * MS : 2000 * MS);
}

static void test_runs_of_seconds_when_crowded(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        machine m = {.run_ns = very_large, .wait_share = most_of_it, .r = {seed}};
        cpu_choice c;
        cpu_choice_past past;
        begin_watched(&m, &c, &past, 2);
        (void)run_until(&m, &c, 16 * S);
        assert_int_equal(c.level, 0);
    }
}

/* A prompt has few runs, and is over before a trial would pay. */
static void test_no_trial_in_a_short_prompt_when_crowded(void **state) {
    (void)state;
    machine m = {.run_ns = prompt, .wait_share = most_of_it};
    cpu_choice c;
    cpu_choice_past past;
    begin_watched(&m, &c, &past, 2);
    (void)run_until(&m, &c, 4 * 350 * MS);
    assert_int_equal(m.n_used[1], 0);
}

/* Four busy processes come after 10 s and leave after 10 s more. */
static bool is_crowded(double now_ns) {
    return now_ns >= 10 * S && now_ns < 20 * S;
}

static double visited_large(machine *m, int32_t n, double now_ns) {
    (void)m;
    return is_crowded(now_ns) ? (n == 1 ? 110 * MS : 150 * MS) : n == 1 ? 45 * MS : 25 * MS;
}

static double waits_of_visits(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)n;
    return is_crowded(now_ns) ? 0.6 : 0.02;
}

static void test_a_large_model_follows_the_crowd(void **state) {
    (void)state;
    machine m = {.run_ns = visited_large, .wait_share = waits_of_visits};
    cpu_choice c;
    cpu_choice_past past;
    begin_watched(&m, &c, &past, 2);
    assert_int_equal(run_until(&m, &c, 10 * S), 2);
    assert_true(m.used_ns[1] <= 0.2 * S);
    (void)run_until(&m, &c, 12 * S);
    assert_int_equal(c.level, 0);
    double before_ns = m.used_ns[2];
    (void)run_until(&m, &c, 20 * S);
    assert_true(m.used_ns[2] - before_ns <= 0.15 * 8 * S);
    (void)run_until(&m, &c, 21.5 * S);
    assert_int_equal(c.level, 1);
    before_ns = m.used_ns[1];
    (void)run_until(&m, &c, 40 * S);
    assert_true(m.used_ns[1] - before_ns <= 0.03 * 18.5 * S);
}

/* Other programs come for two seconds, and leave for two. Eight threads are the best number all the time. */
static bool is_busy_by_turns(double now_ns) {
    return (int64_t)(now_ns / (2 * S)) % 2 == 1;
}

static double by_turns(machine *m, int32_t n, double now_ns) {
    (void)m;
    return (is_busy_by_turns(now_ns) ? 200 * MS : 130 * MS) * 8 / n;
}

static double waits_by_turns(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)n;
    return is_busy_by_turns(now_ns) ? 0.4 : 0.02;
}

static void test_a_load_that_comes_and_goes_costs_little(void **state) {
    (void)state;
    machine m = {.run_ns = by_turns, .wait_share = waits_by_turns};
    machine fixed = {.run_ns = by_turns, .wait_share = waits_by_turns};
    cpu_choice c;
    cpu_choice_past past;
    begin_watched(&m, &c, &past, 8);
    (void)run_until(&m, &c, 120 * S);
    for (; fixed.now_ns < 120 * S; fixed.n_runs++)
        fixed.now_ns += by_turns(&fixed, 8, fixed.now_ns);
    print_message("%.4f of eight threads\n", (double)m.n_runs / fixed.n_runs);
    assert_true(m.n_runs >= 0.97 * fixed.n_runs);
}

/* One busy process on two cores: a single thread finds a free core, and the second of two threads waits. */
static double waits_of_the_second(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)now_ns;
    return n == 1 ? 0.01 : 0.5;
}

static double one_beside_one(machine *m, int32_t n, double now_ns) {
    (void)m;
    (void)now_ns;
    return n == 1 ? 45 * MS : 55 * MS;
}

static void test_it_does_not_flap_where_one_thread_is_free(void **state) {
    (void)state;
    machine m = {.run_ns = one_beside_one, .wait_share = waits_of_the_second};
    cpu_choice c;
    cpu_choice_past past;
    begin_watched(&m, &c, &past, 2);
    (void)run_until(&m, &c, 2 * S);
    assert_int_equal(c.level, 0);
    m.n_changes = m.n_used[2] = 0;
    (void)run_until(&m, &c, 30 * S);
    assert_true(m.n_used[2] <= 0.06 * 28 * S / (55 * MS));
    m = (machine){.run_ns = large, .wait_share = waits_of_the_second}; /* two threads are better all the same */
    begin_watched(&m, &c, &past, 2);
    (void)run_until(&m, &c, 30 * S);
    assert_int_equal(c.level, 1);
    assert_true(m.n_runs >= 0.96 * m.now_ns / (25 * MS));
}

static double best_of_two_of_eight(machine *m, int32_t n, double now_ns) {
    (void)now_ns;
    return noisy(m, n == 1 ? 130 * MS : n == 2 ? 100 * MS : n == 4 ? 140 * MS : 200 * MS);
}

static void test_it_goes_down_several_levels_when_crowded(void **state) {
    (void)state;
    machine m = {.run_ns = best_of_two_of_eight, .wait_share = most_of_it, .r = {7}};
    cpu_choice c;
    cpu_choice_past past;
    begin_watched(&m, &c, &past, 8);
    (void)run_until(&m, &c, 10 * S);
    m.used_ns[2] = 0;
    (void)run_until(&m, &c, 40 * S);
    assert_true(m.used_ns[2] >= 0.75 * 30 * S);
}

/* Where no thread waits, and where the system says nothing, each run has the number of threads that it would have
 * without the watch. */
static void test_without_waits_nothing_is_different(void **state) {
    (void)state;
    static double (*const machines[])(machine *, int32_t, double) = {small, large, prompt, visited, even, sliced};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        machine alone = {.run_ns = machines[i], .r = {i}}, calm = alone, silent = alone;
        cpu_choice choices[3];
        cpu_choice_past pasts[3];
        calm.wait_share = silent.wait_share = nothing;
        begin(&choices[0], &pasts[0], 4);
        begin_watched(&calm, &choices[1], &pasts[1], 4);
        cpu_choice_past_init(&pasts[2], 4, waits_unknown, &silent);
        cpu_choice_init(&choices[2], &pasts[2]);
        while (alone.now_ns < 12 * S) {
            int32_t n = run_until(&alone, &choices[0], alone.now_ns + 1);
            assert_int_equal(run_until(&calm, &choices[1], calm.now_ns + 1), n);
            assert_int_equal(run_until(&silent, &choices[2], silent.now_ns + 1), n);
        }
        assert_true(calm.n_questions > 0 && silent.n_questions > 0);
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
        cmocka_unit_test(test_a_large_model_finds_the_better_number_when_crowded),
        cmocka_unit_test(test_the_first_trial_has_three_runs_or_their_time),
        cmocka_unit_test(test_runs_of_seconds_when_crowded),
        cmocka_unit_test(test_no_trial_in_a_short_prompt_when_crowded),
        cmocka_unit_test(test_a_large_model_follows_the_crowd),
        cmocka_unit_test(test_a_load_that_comes_and_goes_costs_little),
        cmocka_unit_test(test_it_does_not_flap_where_one_thread_is_free),
        cmocka_unit_test(test_it_goes_down_several_levels_when_crowded),
        cmocka_unit_test(test_without_waits_nothing_is_different),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
