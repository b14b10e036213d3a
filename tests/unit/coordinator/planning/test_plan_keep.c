/* Plans for ranks that hold layers: what loads least among plans that are nearly as fast. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/planning/plan_keep.h"
#include "coordinator/planning/plan_predict.h"
#include "tests/support/test.h"
#include "tests/unit/coordinator/planning/test_planner_plans.h"

enum { KEEP_LAYERS = 240, KEEP_RANKS = 8, N_RANDOM = 300 };

static size_t bytes[KEEP_LAYERS + 1];
static bool holds[KEEP_RANKS * (KEEP_LAYERS + 1)], takes_part[KEEP_RANKS];
static uint64_t memory_bytes[KEEP_RANKS];
static mr_plan former, plan;
static mr_err err;

/* A model of equal layers with an output of half a layer, and ranks that hold nothing and take part. */
static mr_keep_wish wish_of(int32_t n_layers, int32_t n_ranks) {
    for (int32_t l = 0; l <= n_layers; l++)
        bytes[l] = l < n_layers ? 100 : 50;
    memset(holds, 0, sizeof holds);
    for (int32_t r = 0; r < KEEP_RANKS; r++)
        takes_part[r] = r < n_ranks;
    return (mr_keep_wish){.n_layers = n_layers,
                          .n_ranks = n_ranks,
                          .load_bytes = bytes,
                          .read_bytes = bytes,
                          .holds = holds,
                          .takes_part = takes_part,
                          .memory_bytes = memory_bytes,
                          .former = &former};
}

/* A plan with stage i on ranks[i] up to layer ends[i]. */
static mr_plan plan_of(int32_t n, const int32_t *ranks, const int32_t *ends) {
    mr_plan p = {.n_stages = n};
    for (int32_t i = 0; i < n; i++)
        p.stages[i] = (mr_plan_stage){.first = i > 0 ? ends[i - 1] : 0, .last = ends[i], .rank = ranks[i]};
    return p;
}

static void hold(const mr_keep_wish *w, int32_t rank, const mr_plan_stage *s) {
    for (int32_t l = s->first; l < s->last + (s->last == w->n_layers); l++)
        holds[rank * (w->n_layers + 1) + l] = true;
}

/* The ranks of the former plan hold their stages. */
static void run_before(const mr_keep_wish *w, int32_t n, const int32_t *ranks, const int32_t *ends) {
    former = plan_of(n, ranks, ends);
    for (int32_t i = 0; i < n; i++)
        hold(w, ranks[i], &former.stages[i]);
}

static void expect_plan(const mr_keep_wish *w, int32_t n, const int32_t *ranks, const int32_t *ends, size_t load) {
    expect_ok(mr_plan_keep(w, &plan, &err), &err);
    assert_int_equal(plan.n_stages, n);
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(plan.stages[i].rank, ranks[i]);
        assert_int_equal(plan.stages[i].first, i > 0 ? ends[i - 1] : 0);
        assert_int_equal(plan.stages[i].last, ends[i]);
    }
    assert_int_equal(mr_plan_load_bytes(w, &plan), load);
}

#define LIST(...)                                                                                                      \
    (const int32_t[]) {                                                                                                \
        __VA_ARGS__                                                                                                    \
    }

/* --- Without measured times -------------------------------------------------------------------------------------- */

static void test_a_spare_takes_the_place(void **state) {
    (void)state;
    for (int knows = 0; knows < 3; knows++) { /* 2: nothing but the memory tells ranks 3 and 4 apart */
        mr_keep_wish w = wish_of(12, 5);
        memory_bytes[3] = 1 << 20;
        memory_bytes[4] = knows == 2 ? 2 << 20 : 1 << 20;
        run_before(&w, 3, LIST(0, 1, 2), LIST(4, 8, 12));
        takes_part[1] = false;
        if (knows == 1) /* rank 3 is free, too, and holds nothing */
            hold(&w, 4, &former.stages[1]);
        plan = plan_of(3, LIST(0, 2, 3), LIST(4, 8, 12));
        expect_plan(&w, 3, LIST(0, knows ? 4 : 3, 2), LIST(4, 8, 12), knows == 1 ? 0 : 400);
    }
    memset(memory_bytes, 0, sizeof memory_bytes);
}

static void test_the_others_take_over(void **state) {
    (void)state;
    mr_keep_wish w = wish_of(12, 3);
    run_before(&w, 3, LIST(2, 0, 1), LIST(4, 8, 12));
    takes_part[0] = false;
    plan = plan_of(2, LIST(1, 2), LIST(6, 12));
    expect_plan(&w, 2, LIST(2, 1), LIST(6, 12), 400); /* in the order of before */
}

/* Cuts move by some per cent, but not further. */
static void test_cuts_move_a_little(void **state) {
    (void)state;
    mr_keep_wish w = wish_of(200, 2);
    run_before(&w, 2, LIST(0, 1), LIST(98, 200));
    plan = plan_of(2, LIST(0, 1), LIST(100, 200));
    expect_plan(&w, 2, LIST(0, 1), LIST(98, 200), 0);
    w = wish_of(200, 2);
    run_before(&w, 2, LIST(0, 1), LIST(80, 200));
    plan = plan_of(2, LIST(0, 1), LIST(100, 200));
    expect_plan(&w, 2, LIST(0, 1), LIST(95, 200), 1500);
}

/* A plan that keeps everything stays as it is. */
static void test_nothing_to_gain(void **state) {
    (void)state;
    mr_keep_wish w = wish_of(10, 4);
    former = plan_of(2, LIST(0, 1), LIST(5, 10));
    plan = plan_of(3, LIST(2, 1, 0), LIST(3, 6, 10));
    expect_plan(&w, 3, LIST(2, 1, 0), LIST(3, 6, 10), 1050); /* nobody holds anything */
    takes_part[0] = takes_part[1] = false;
    plan = plan_of(1, LIST(2), LIST(10));
    hold(&w, 2, &plan.stages[0]);
    expect_plan(&w, 1, LIST(2), LIST(10), 0);
}

/* --- Random ------------------------------------------------------------------------------------------------------ */

static void check_cover(const mr_keep_wish *w, const mr_plan *p) {
    bool used[KEEP_RANKS] = {false};
    int32_t next = 0;
    for (int32_t i = 0; i < p->n_stages; i++) {
        const mr_plan_stage *s = &p->stages[i];
        assert_true(s->first == next && s->last > s->first && takes_part[s->rank] && !used[s->rank]);
        used[s->rank] = true;
        next = s->last;
    }
    assert_int_equal(next, w->n_layers);
}

/* A random former plan, ranks that are lost, and holdings that fit the plan or not. */
static void randomise(const mr_keep_wish *w) {
    int32_t n = random_int(1, w->n_ranks < w->n_layers ? w->n_ranks : w->n_layers), ranks[KEEP_RANKS] = {0};
    int32_t ends[KEEP_RANKS] = {0};
    int32_t shift = random_int(0, w->n_ranks - 1);
    for (int32_t i = 0; i < n; i++) {
        ranks[i] = (i + shift) % w->n_ranks;
        ends[i] = i + 1 == n ? w->n_layers : (i > 0 ? ends[i - 1] : 0) + 1;
        if (i + 1 < n)
            ends[i] += random_int(0, w->n_layers - (n - 1 - i) - ends[i]);
    }
    run_before(w, n, ranks, ends);
    for (int32_t r = 0; r < w->n_ranks; r++) {
        takes_part[r] = random_int(0, 3) > 0;
        for (int32_t l = 0; l <= w->n_layers; l++)
            holds[r * (w->n_layers + 1) + l] ^= random_int(0, 9) == 0;
    }
    takes_part[random_int(0, w->n_ranks - 1)] = true;
}

/* By measured times: never more to load than with the fastest plan, nearly as fast, and in the memory of the ranks. */
static void test_random_clusters(void **state) {
    (void)state;
    static cluster c;
    static mr_plan best;
    static mr_plan_prediction p;
    int n_solved = 0, n_better = 0;
    for (int i = 0; i < N_RANDOM; i++) {
        cluster_random(&c, random_int(1, 4), random_int(2, 7), i % 2);
        mr_keep_wish w = wish_of(c.facts.n_layers, c.facts.n_ranks);
        w.planner = &c.config;
        randomise(&w);
        for (int32_t r = 0; r < w.n_ranks; r++)
            takes_part[r] = true;
        if (mr_planner_solve(&c.config, &best, &err) != MR_OK)
            continue;
        plan = best;
        expect_ok(mr_plan_keep(&w, &plan, &err), &err);
        check_cover(&w, &plan);
        assert_true(mr_plan_load_bytes(&w, &plan) <= mr_plan_load_bytes(&w, &best));
        n_better += mr_plan_load_bytes(&w, &plan) < mr_plan_load_bytes(&w, &best);
        int32_t n = c.config.objective == MR_OBJECTIVE_LATENCY ? 1 : c.config.n_sequences;
        mr_plan_predict(&c.facts, &best, c.config.depth, &p);
        double rate = mr_plan_decode_rate(&p, n, NULL);
        mr_plan_predict(&c.facts, &plan, c.config.depth, &p);
        assert_true(mr_plan_decode_rate(&p, n, NULL) >= 0.949 * rate);
        expect_ok(mr_planner_check_memory(&c.config, &plan, &err), &err);
        n_solved++;
    }
    print_message("%d of %d plans load less\n", n_better, n_solved);
    assert_true(n_solved > N_RANDOM / 4 && n_better > 0);
}

/* By bytes: the same without times. */
static void test_random_ranks(void **state) {
    (void)state;
    for (int i = 0; i < N_RANDOM; i++) {
        mr_keep_wish w = wish_of(random_int(KEEP_RANKS, 40), random_int(1, KEEP_RANKS));
        randomise(&w);
        mr_plan best = {0};
        for (int32_t r = 0; r < w.n_ranks; r++)
            if (takes_part[r])
                best.stages[best.n_stages++].rank = r;
        size_t most = 0, slowest = 0;
        for (int32_t k = 0; k < best.n_stages; k++) {
            mr_plan_stage *s = &best.stages[k];
            s->first = k * w.n_layers / best.n_stages;
            s->last = (k + 1) * w.n_layers / best.n_stages;
            size_t cost = 100 * (size_t)(s->last - s->first) + (s->last == w.n_layers ? 50 : 0);
            most = cost > most ? cost : most;
        }
        plan = best;
        expect_ok(mr_plan_keep(&w, &plan, &err), &err);
        check_cover(&w, &plan);
        assert_true(plan.n_stages <= best.n_stages);
        assert_true(mr_plan_load_bytes(&w, &plan) <= mr_plan_load_bytes(&w, &best));
        for (int32_t k = 0; k < plan.n_stages; k++) {
            const mr_plan_stage *s = &plan.stages[k];
            size_t cost = 100 * (size_t)(s->last - s->first) + (s->last == w.n_layers ? 50 : 0);
            slowest = cost > slowest ? cost : slowest;
        }
        assert_true((double)slowest <= 1.0501 * (double)most);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_spare_takes_the_place), cmocka_unit_test(test_the_others_take_over),
        cmocka_unit_test(test_cuts_move_a_little),      cmocka_unit_test(test_nothing_to_gain),
        cmocka_unit_test(test_random_clusters),         cmocka_unit_test(test_random_ranks),
    };
    return cmocka_run_group_tests_name("plan_keep", tests, NULL, NULL);
}
