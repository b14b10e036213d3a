/* Paces of ranks, the decision to change a running plan, and suspected ranks: by given times. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/recut.h"
#include "engine/base/clock.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

enum { N_RANKS = 3 };
static const int64_t S = MR_NS_PER_S, START_NS = 1000 * MR_NS_PER_S;

static mr_rank_paces *create_paces(void) {
    mr_rank_paces *p = NULL;
    mr_err err;
    expect_ok(mr_rank_paces_create(N_RANKS, &p, &err), &err);
    return p;
}

/* Reports of a rank, four a second, each of 25 steps that take pace times the predicted 10 ms. */
static int64_t report(mr_rank_paces *p, int32_t rank, double pace, int32_t n, int64_t now_ns) {
    for (int32_t i = 0; i < n; i++) {
        now_ns += S / 4;
        mr_rank_paces_add(p, rank, &(mr_paced_steps){.n = 25, .seconds = 0.25 * pace, .predicted_s = 0.25}, now_ns);
    }
    return now_ns;
}

/* --- Paces ------------------------------------------------------------------------------------------------------- */

static void knows_nothing_at_first(void **state) {
    (void)state;
    mr_rank_paces *p = create_paces();
    assert_false(mr_rank_paces_is_known(p, 0, START_NS));
    assert_float_equal(mr_rank_paces_get(p, 0, START_NS), 1, 0);
    mr_rank_paces_add(p, 0, &(mr_paced_steps){.n = 3, .seconds = 0.3, .predicted_s = 0.03}, START_NS);
    assert_false(mr_rank_paces_is_known(p, 0, START_NS)); /* too few steps */
    mr_rank_paces_add(p, 0, &(mr_paced_steps){.n = 40, .seconds = 0, .predicted_s = 0}, START_NS);
    assert_false(mr_rank_paces_is_known(p, 0, START_NS)); /* and nothing was predicted for these */
    mr_rank_paces_destroy(p);
}

static void comes_back_to_one(void **state) {
    (void)state;
    mr_rank_paces *p = create_paces();
    int64_t now_ns = report(p, 0, 3, 8, START_NS);
    assert_true(mr_rank_paces_is_known(p, 0, now_ns));
    assert_float_equal(mr_rank_paces_get(p, 0, now_ns), 3, 1e-9);
    now_ns = report(p, 0, 1, 240, now_ns);
    assert_float_equal(mr_rank_paces_get(p, 0, now_ns), 1, 0.05);
    mr_rank_paces_destroy(p);
}

/* What all ranks have in common, such as longer contexts than predicted, is no reason to prefer an idle rank. */
static void assumes_the_usual_pace_of_idle_ranks(void **state) {
    (void)state;
    mr_rank_paces *p = create_paces();
    (void)report(p, 0, 1.3, 8, START_NS);
    int64_t now_ns = report(p, 1, 9, 8, START_NS);
    assert_float_equal(mr_rank_paces_get(p, 2, now_ns), 1.3, 1e-9);
    mr_rank_paces_destroy(p);
}

static void fades_where_no_steps_come(void **state) {
    (void)state;
    mr_rank_paces *p = create_paces();
    int64_t then_ns = report(p, 1, 16, 8, START_NS), now_ns = then_ns + 130 * S;
    (void)report(p, 0, 1, 8, now_ns - 2 * S);
    assert_float_equal(mr_rank_paces_get(p, 1, then_ns + 9 * S), 16, 1e-9);
    assert_float_equal(mr_rank_paces_get(p, 1, now_ns), 4, 1e-6); /* half of the way, in powers */
    assert_true(mr_rank_paces_get(p, 1, now_ns + 3600 * S) < 1.01);
    mr_rank_paces_destroy(p);
}

/* A measurement of an idle rank holds until steps of it come. */
static void believes_measurements_of_idle_ranks(void **state) {
    (void)state;
    mr_rank_paces *p = create_paces();
    int64_t now_ns = report(p, 0, 1.3, 8, START_NS);
    mr_rank_paces_measured(p, 2, 0.1, now_ns);
    assert_float_equal(mr_rank_paces_get(p, 2, now_ns), 0.13, 1e-9);
    assert_false(mr_rank_paces_is_known(p, 2, now_ns));             /* steps alone tell how fast a stage is */
    assert_float_equal(mr_rank_paces_get(p, 1, now_ns), 1.3, 1e-9); /* so that it is not the usual rank */
    mr_rank_paces_measured(p, 2, 0, now_ns);                        /* nothing to compare with */
    assert_float_equal(mr_rank_paces_get(p, 2, now_ns), 0.13, 1e-9);
    now_ns = report(p, 2, 3, 8, now_ns);
    assert_true(mr_rank_paces_is_known(p, 2, now_ns));
    assert_float_equal(mr_rank_paces_get(p, 2, now_ns), 3, 1e-9);
    mr_rank_paces_measured(p, 2, 8, now_ns); /* it has lost its layers, which were slow */
    assert_float_equal(mr_rank_paces_get(p, 2, now_ns), 10.4, 1e-9);
    assert_true(mr_rank_paces_get(p, 2, now_ns + 3600 * S) < 1.01); /* where it is not measured any more */
    mr_rank_paces_destroy(p);
}

/* Where all are faster than their facts, a measured rank is as fast as it says. */
static void does_not_multiply_fast_paces(void **state) {
    (void)state;
    mr_rank_paces *p = create_paces();
    int64_t now_ns = report(p, 0, 0.5, 8, START_NS);
    mr_rank_paces_measured(p, 2, 0.5, now_ns);
    assert_float_equal(mr_rank_paces_get(p, 2, now_ns), 0.5, 1e-9);
    mr_rank_paces_destroy(p);
}

/* Facts are scaled each time from what was measured, so that paces do not multiply up. */
static void scales_facts_and_leaves_them(void **state) {
    (void)state;
    mr_rank_paces *p = create_paces();
    mr_rank_facts ranks[N_RANKS] = {0}, out[N_RANKS];
    for (int32_t i = 0; i < N_RANKS; i++) {
        ranks[i].memory_bytes = 100 + (uint64_t)i;
        ranks[i].layer[0] = (mr_step_times){.n = 2, .rows = {1, 8}, .seconds = {0.001, 0.002}};
        ranks[i].output = (mr_step_times){.n = 1, .rows = {1}, .seconds = {0.5}};
        ranks[i].position_s[0] = 1e-6;
        ranks[i].step_s = 1e-4;
    }
    const mr_cluster_facts facts = {.n_ranks = N_RANKS, .ranks = ranks};
    (void)report(p, 0, 1, 8, START_NS);
    (void)report(p, 2, 1, 8, START_NS);
    int64_t now_ns = report(p, 1, 4, 8, START_NS);
    for (int i = 0; i < 3; i++)
        mr_rank_paces_apply(p, &facts, now_ns, out);
    assert_float_equal(out[1].layer[0].seconds[1], 0.008, 1e-9);
    assert_float_equal(out[1].output.seconds[0], 2, 1e-9);
    assert_float_equal(out[1].position_s[0], 4e-6, 1e-12);
    assert_float_equal(out[1].step_s, 4e-4, 1e-9);
    assert_int_equal(out[1].memory_bytes, 101);
    assert_float_equal(out[0].layer[0].seconds[1], 0.002, 1e-9);
    assert_float_equal(ranks[1].layer[0].seconds[1], 0.002, 0);
    mr_rank_paces_destroy(p);
}

/* --- The decision ------------------------------------------------------------------------------------------------ */

static void must_be_clearly_faster_than_its_cost(void **state) {
    (void)state;
    assert_true(mr_recut_is_worth(&(mr_recut_offer){100, 120, 10}));
    assert_false(mr_recut_is_worth(&(mr_recut_offer){100, 110, 0}));  /* not clearly */
    assert_false(mr_recut_is_worth(&(mr_recut_offer){100, 120, 30})); /* 20 s are gained in two minutes */
    assert_false(mr_recut_is_worth(&(mr_recut_offer){0, 0, 0}));      /* nothing is known */
}

/* Weighs the same offer look after look. Returns how many seconds until it is accepted; -1: not within most_s. */
static int64_t seconds_until(mr_recut *r, const mr_recut_offer *offer, int64_t *now_ns, int64_t most_s) {
    int64_t start_ns = *now_ns;
    for (; *now_ns < start_ns + most_s * S; *now_ns += S)
        if (mr_recut_is_due(r, *now_ns) && mr_recut_weigh(r, offer, 0, *now_ns))
            return (*now_ns - start_ns) / S;
    return -1;
}

static void waits_until_looks_agree_and_after_a_change(void **state) {
    (void)state;
    const mr_recut_offer good = {100, 150, 1}, none = {100, 100, 1};
    int64_t now_ns = START_NS;
    mr_recut r = mr_recut_begin(5 * S, now_ns);
    assert_int_equal(seconds_until(&r, &good, &now_ns, 100), 15);
    mr_recut_note_epoch(&r, true, now_ns);
    assert_int_equal(seconds_until(&r, &good, &now_ns, 1000), 60); /* the new plan runs so long at least */
    mr_recut_note_epoch(&r, true, now_ns);
    assert_int_equal(seconds_until(&r, &good, &now_ns, 1000), 120); /* and twice as long after the next change */
    mr_recut_note_epoch(&r, false, now_ns);
    assert_int_equal(seconds_until(&r, &good, &now_ns, 1000), 15); /* an epoch after a loss does not count */
    mr_recut_note_epoch(&r, true, now_ns);
    assert_int_equal(seconds_until(&r, &none, &now_ns, 7200), -1);
    assert_true(r.hold_ns < 120 * S); /* long quiet shortens it again */
}

static void one_bad_look_begins_anew(void **state) {
    (void)state;
    const mr_recut_offer good = {100, 150, 1}, none = {100, 100, 1};
    mr_recut r = mr_recut_begin(5 * S, START_NS);
    assert_false(mr_recut_weigh(&r, &good, 0, START_NS + 5 * S));
    assert_false(mr_recut_weigh(&r, &good, 0, START_NS + 10 * S));
    assert_false(mr_recut_weigh(&r, &none, 0, START_NS + 15 * S));
    assert_false(mr_recut_weigh(&r, &good, 0, START_NS + 20 * S));
    assert_false(mr_recut_weigh(&r, &good, 0, START_NS + 25 * S));
    assert_true(mr_recut_weigh(&r, &good, 0, START_NS + 30 * S));
}

static void long_looks_are_rare(void **state) {
    (void)state;
    mr_recut r = mr_recut_begin(5 * S, START_NS);
    (void)mr_recut_weigh(&r, &(mr_recut_offer){100, 100, 0}, S, START_NS + 5 * S);
    assert_false(mr_recut_is_due(&r, START_NS + 54 * S));
    assert_true(mr_recut_is_due(&r, START_NS + 55 * S));
}

/* --- Noise ------------------------------------------------------------------------------------------------------- */

/* Two ranks with 10 layers of 1 ms together: the rate of the cut after n layers, with the paces of the ranks. */
static double rate_of(const double pace[2], int32_t n) {
    double first = pace[0] * n, second = pace[1] * (10 - n);
    return 1000 / (first > second ? first : second);
}

static int32_t best_cut(const double pace[2]) {
    int32_t best = 1;
    for (int32_t n = 2; n < 10; n++)
        if (rate_of(pace, n) > rate_of(pace, best))
            best = n;
    return best;
}

/* An hour with steps of which some take many times as long, on both ranks. true_pace: of rank 0. Returns how often the
 * plan changes, and its cut at the end. */
static int32_t changes_in_an_hour(uint64_t seed, double true_pace, double noise, int32_t *out_cut) {
    mr_rank_paces *p = create_paces();
    rng draws = {.state = seed};
    int64_t now_ns = START_NS;
    mr_recut r = mr_recut_begin(5 * S, now_ns);
    int32_t cut = 5, n_changes = 0;
    for (int32_t i = 0; i < 4 * 3600; i++) {
        now_ns += S / 4;
        for (int32_t rank = 0; rank < 2; rank++) {
            double stall = rng_below(&draws, 10) == 0 ? 4 * noise : 0;
            double pace = (rank == 0 ? true_pace : 1) * (1 + noise * rng_below(&draws, 1000) / 1000.0 + stall);
            mr_rank_paces_add(p, rank, &(mr_paced_steps){.n = 25, .seconds = 0.25 * pace, .predicted_s = 0.25}, now_ns);
        }
        if (!mr_recut_is_due(&r, now_ns))
            continue;
        double learned[2] = {mr_rank_paces_get(p, 0, now_ns), mr_rank_paces_get(p, 1, now_ns)};
        int32_t best = best_cut(learned);
        const mr_recut_offer offer = {rate_of(learned, cut), rate_of(learned, best), 1};
        if (!mr_recut_weigh(&r, &offer, 0, now_ns))
            continue;
        cut = best;
        n_changes++;
        mr_recut_note_epoch(&r, true, now_ns);
    }
    *out_cut = cut;
    mr_rank_paces_destroy(p);
    return n_changes;
}

static void does_not_flap(void **state) {
    (void)state;
    int32_t cut, most_calm = 0, most_wild = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        int32_t calm = changes_in_an_hour(seed, 1, 0.3, &cut);
        assert_int_equal(cut, 5);
        most_calm = calm > most_calm ? calm : most_calm;
        int32_t wild = changes_in_an_hour(seed, 1, 3, &cut);
        most_wild = wild > most_wild ? wild : most_wild;
        assert_int_equal(changes_in_an_hour(seed, 4, 0.1, &cut), 1);
        assert_int_equal(cut, 2);
    }
    assert_int_equal(most_calm, 0);
    assert_true(most_wild <= 8); /* holds double, so that even wild noise costs little */
}

/* --- Suspicions -------------------------------------------------------------------------------------------------- */

static const mr_paced_steps SLOW = {.n = 1, .seconds = 0.9, .predicted_s = 0.1},
                            USUAL = {.n = 4, .seconds = 0.5, .predicted_s = 0.4};
static const mr_other_ranks OTHERS = {.of_host = 1, .fastest = 1}, BUSY_HOST = {.of_host = 6, .fastest = 1},
                            NO_OTHERS = {0};

static void suspects_after_several_slow_steps(void **state) {
    (void)state;
    mr_suspicion s = {0};
    for (int i = 0; i < 3; i++)
        assert_false(mr_suspicion_add(&s, &SLOW, &OTHERS, START_NS));
    assert_false(mr_suspicion_add(&s, &USUAL, &OTHERS, START_NS)); /* not in a row */
    for (int i = 0; i < 3; i++)
        assert_false(mr_suspicion_add(&s, &SLOW, &OTHERS, START_NS));
    assert_true(mr_suspicion_add(&s, &SLOW, &OTHERS, START_NS));
    assert_true(s.is_on);
    for (int i = 0; i < 3; i++)
        assert_false(mr_suspicion_add(&s, &USUAL, &OTHERS, START_NS));
    assert_true(mr_suspicion_add(&s, &USUAL, &OTHERS, START_NS));
    assert_false(s.is_on);
}

static void does_not_suspect_short_steps_or_busy_hosts(void **state) {
    (void)state;
    mr_suspicion s = {0};
    const mr_paced_steps shorts = {.n = 50, .seconds = 5, .predicted_s = 0.05};
    for (int i = 0; i < 20; i++) {
        assert_false(
            mr_suspicion_add(&s, &shorts, &NO_OTHERS, START_NS));        /* 100 times as long, and still only 100 ms */
        assert_false(mr_suspicion_add(&s, &SLOW, &BUSY_HOST, START_NS)); /* the host is busy */
    }
    assert_false(s.is_on);
}

static void does_not_suspect_one_rank_where_all_are_slow(void **state) {
    (void)state;
    mr_suspicion s = {0};
    const double pace = SLOW.seconds / SLOW.predicted_s;
    for (int i = 0; i < 20; i++)
        assert_false(mr_suspicion_add(&s, &SLOW, &(mr_other_ranks){.fastest = pace / 3}, START_NS));
    for (int i = 0; i < 3; i++)
        assert_false(mr_suspicion_add(&s, &SLOW, &(mr_other_ranks){.fastest = pace / 6}, START_NS));
    assert_true(mr_suspicion_add(&s, &SLOW, &(mr_other_ranks){.fastest = pace / 6}, START_NS));
}

static void does_not_suspect_after_one_long_step(void **state) {
    (void)state;
    mr_suspicion s = {0};
    const mr_paced_steps hiccup = {.n = 6, .seconds = 5.25, .predicted_s = 0.3};
    for (int i = 0; i < 10; i++) {
        assert_false(mr_suspicion_add(&s, &hiccup, &OTHERS, START_NS));
        assert_false(mr_suspicion_add(&s, &USUAL, &OTHERS, START_NS));
    }
    assert_false(mr_suspicion_add(&s, &hiccup, &OTHERS, START_NS));
    assert_true(mr_suspicion_add(&s, &hiccup, &OTHERS, START_NS));
}

static void ends_after_a_rest_that_doubles(void **state) {
    (void)state;
    mr_suspicion s = {0};
    int64_t now_ns = START_NS;
    for (int64_t rest_s = 60; rest_s <= 240; rest_s *= 2) {
        for (int i = 0; i < 4; i++)
            (void)mr_suspicion_add(&s, &SLOW, &NO_OTHERS, now_ns);
        assert_true(s.is_on);
        assert_false(mr_suspicion_rest(&s, now_ns + rest_s * S - 1));
        assert_true(mr_suspicion_rest(&s, now_ns + rest_s * S));
        assert_false(s.is_on);
        assert_false(mr_suspicion_rest(&s, now_ns + rest_s * S));
        now_ns += rest_s * S;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_nothing_at_first),
        cmocka_unit_test(comes_back_to_one),
        cmocka_unit_test(assumes_the_usual_pace_of_idle_ranks),
        cmocka_unit_test(fades_where_no_steps_come),
        cmocka_unit_test(believes_measurements_of_idle_ranks),
        cmocka_unit_test(does_not_multiply_fast_paces),
        cmocka_unit_test(scales_facts_and_leaves_them),
        cmocka_unit_test(must_be_clearly_faster_than_its_cost),
        cmocka_unit_test(waits_until_looks_agree_and_after_a_change),
        cmocka_unit_test(one_bad_look_begins_anew),
        cmocka_unit_test(long_looks_are_rare),
        cmocka_unit_test(does_not_flap),
        cmocka_unit_test(suspects_after_several_slow_steps),
        cmocka_unit_test(does_not_suspect_short_steps_or_busy_hosts),
        cmocka_unit_test(does_not_suspect_one_rank_where_all_are_slow),
        cmocka_unit_test(does_not_suspect_after_one_long_step),
        cmocka_unit_test(ends_after_a_rest_that_doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
