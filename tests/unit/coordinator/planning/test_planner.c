/* The planner against all possible plans on small random clusters, and on clusters whose best plan is obvious. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/planning/plan_predict.h"
#include "coordinator/planning/plan_problem.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "tests/support/share.h"
#include "tests/support/test.h"
#include "tests/unit/coordinator/planning/test_planner_plans.h"

enum { N_CLUSTERS = 60 };

static void check_plan(const cluster *c, const mr_plan *plan) {
    bool used[1024] = {false};
    int32_t next = 0;
    for (int32_t i = 0; i < plan->n_stages; i++) {
        const mr_plan_stage *s = &plan->stages[i];
        assert_int_equal(s->first, next);
        assert_true(s->last > s->first);
        assert_in_range(s->rank, 0, c->facts.n_ranks - 1);
        assert_false(used[s->rank]);
        used[s->rank] = true;
        next = s->last;
    }
    assert_int_equal(next, c->facts.n_layers);
}

/* The planner looks for no gain below a thousandth. */
static void compare_with_all(const cluster *c, const char *what, int number, double tolerance) {
    static mr_plan plan, trial;
    mr_err err;
    trial.n_stages = 0;
    double want = try_all(c, &trial);
    mr_status status = mr_planner_solve(&c->config, &plan, &err);
    if (want == INFINITY) {
        assert_int_equal(status, MR_E_NO_MEMORY);
        return;
    }
    if (status != MR_OK)
        fail_msg("%s %d: %s", what, number, err.text);
    check_plan(c, &plan);
    assert_true(fits(c, &plan));
    double got = seconds_of(c, &plan, false);
    if (got > (1 + tolerance) * want)
        fail_msg("%s %d: %d ranks, %d layers, %d sequences: %g s, the best plan takes %g s", what, number,
                 c->facts.n_ranks, c->facts.n_layers, c->config.n_sequences, got, want);
    expect_ok(mr_planner_check_memory(&c->config, &plan, &err), &err);
    assert_true(mr_planner_kv_tokens(&c->config, &plan) >= c->config.kv_tokens);
}

/* What is foretold of a plan is what the formula says; to a hundredth, which more micro-batches have to bring. */
static void check_predictions(bool devices) {
    static cluster c;
    static mr_plan plan;
    static mr_plan_prediction p;
    for (int i = 0; i < N_CLUSTERS; i++) {
        mr_err err;
        cluster_random(&c, random_int(1, 4), random_int(1, 7), false);
        if (devices)
            add_devices(&c);
        if (mr_planner_solve(&c.config, &plan, &err) != MR_OK)
            continue;
        int32_t m;
        mr_plan_predict(&c.facts, &plan, c.config.depth, &p);
        double rate = mr_plan_decode_rate(&p, c.config.n_sequences, &m);
        double want = c.config.n_sequences / seconds_with(&c, &plan, c.config.n_sequences, m, false);
        assert_float_equal(rate / want, 1, 1e-9);
        assert_true(m <= mr_micro_batches_most(plan.n_stages));
        /* A prompt of one chunk is one step. Its last row samples a token. */
        double step = p.times.hops_s + p.times.hops_row_s * 32 + mr_step_times_at(&p.times.output, 1);
        for (int32_t s = 0; s < plan.n_stages; s++)
            step += mr_step_times_at(&p.stages[s], 32);
        assert_float_equal(mr_plan_prefill_rate(&p, 32, 64) * step / 32, 1, 1e-9);
    }
}

static void test_prediction(void **state) {
    (void)state;
    check_predictions(false);
}

/* Of a shorter run. The cluster is drawn all the same, so that later tests have the same ones. */
static bool is_left_out(int i) {
    return i % share_get() != share_first(N_CLUSTERS);
}

static void test_against_all(void **state) {
    (void)state;
    static cluster c;
    for (int i = 0; i < N_CLUSTERS; i++) {
        cluster_random(&c, random_int(1, 4), random_int(1, 7), i % 3 == 0);
        if (is_left_out(i))
            continue;
        compare_with_all(&c, "throughput", i, 0.003);
        c.config.objective = MR_OBJECTIVE_LATENCY;
        compare_with_all(&c, "latency", i, 0.003);
    }
    for (int i = 0; i < N_CLUSTERS / 10; i++) {
        cluster_random(&c, 5, 8, false);
        if (is_left_out(i))
            continue;
        compare_with_all(&c, "five ranks", i, 0.003);
    }
}

/* The orders find what the subsets find, when they are asked for all of them. */
static void test_orders(void **state) {
    (void)state;
    static cluster c;
    static plan_candidate exact, order;
    int n_found = 0;
    for (int i = 0; i < N_CLUSTERS; i++) {
        plan_problem p;
        plan_exact *x;
        plan_order *o;
        mr_err err;
        cluster_random(&c, 3, random_int(1, 7), true); /* equal links: every way back takes the mean time */
        expect_ok(plan_problem_init(&p, &c.config, &err), &err);
        expect_ok(plan_exact_create(&p, 0, &x, &err), &err);
        expect_ok(plan_order_create(&p, &o, &err), &err);
        plan_problem_set_rows(&p, random_in(1, 16));
        const plan_bounds bounds = {i % 2 ? random_in(5e-3, 40e-3) : INFINITY,
                                    i % 4 ? random_in(5e-3, 80e-3) : INFINITY};
        plan_exact_solve(x, bounds, &exact);
        double least = INFINITY;
        for (int32_t a = 0; a < 3; a++)
            for (int32_t b = 0; b < 3; b++) {
                const int32_t ranks[] = {a, b, 3 - a - b};
                if (a == b)
                    continue;
                plan_order_solve(o, ranks, bounds, &order);
                least = order.found ? fmin(least, order.sum_s) : least;
            }
        assert_int_equal(exact.found, least < INFINITY);
        if (exact.found)
            assert_float_equal(exact.sum_s, least, 1e-9);
        n_found += exact.found;
        plan_exact_destroy(x);
        plan_order_destroy(o);
        plan_problem_deinit(&p);
    }
    assert_in_range(n_found, N_CLUSTERS / 4, N_CLUSTERS - 5);
}

/* --- Plain clusters ---------------------------------------------------------------------------------------------- */

/* Ranks of equal speed and much memory, one on each host; a layer takes 0.1 ms for each row: where many rows took no
 * longer than one, a second rank would be of no use. */
static void cluster_plain(cluster *c, int32_t n_ranks, int32_t n_layers) {
    cluster_random(c, n_ranks, n_layers, true);
    memset(c->kind, 0, sizeof c->kind);
    c->facts.n_kinds = 1;
    c->config.n_sequences = 16;
    for (int32_t r = 0; r < n_ranks; r++) {
        mr_rank_facts *f = &c->ranks[r];
        f->layer[0] = curve(1e-6, 1e-4);
        f->output = curve(1e-6, 1e-7);
        f->position_s[0] = 0;
        f->step_s = 1e-6;
        f->memory_bytes = 1 << 20;
    }
}

static void solve(const cluster *c, mr_plan *plan) {
    mr_err err;
    expect_ok(mr_planner_solve(&c->config, plan, &err), &err);
    check_plan(c, plan);
}

static int32_t layers_on(const mr_plan *plan, int32_t rank) {
    for (int32_t i = 0; i < plan->n_stages; i++)
        if (plan->stages[i].rank == rank)
            return plan->stages[i].last - plan->stages[i].first;
    return 0;
}

static void test_twice_as_fast(void **state) {
    (void)state;
    static cluster c;
    mr_plan plan;
    cluster_plain(&c, 2, 9);
    c.ranks[1].layer[0] = curve(5e-7, 5e-5);
    solve(&c, &plan);
    assert_int_equal(layers_on(&plan, 0), 3);
    assert_int_equal(layers_on(&plan, 1), 6);
}

static void test_leaves_out(void **state) {
    (void)state;
    static cluster c;
    mr_plan plan;
    cluster_plain(&c, 4, 8);
    c.ranks[0].layer[0] = curve(1e-6, 2e-3); /* one layer on rank 0 takes longer than all layers on another rank */
    c.ranks[2].memory_bytes = 100;           /* room for no layer */
    solve(&c, &plan);
    assert_int_equal(plan.n_stages, 2);
    assert_int_equal(layers_on(&plan, 1), 4);
    assert_int_equal(layers_on(&plan, 3), 4);
}

static void test_slow_link(void **state) {
    (void)state;
    static cluster c;
    mr_plan plan;
    cluster_plain(&c, 3, 9);
    for (int32_t i = 0; i < 3; i++) { /* all links from and to rank 1 are slow */
        c.links[3 * i + 1] = (mr_link_facts){50e-3, 1e5};
        c.links[3 + i] = (mr_link_facts){50e-3, 1e5};
    }
    solve(&c, &plan);
    assert_int_equal(layers_on(&plan, 1), 0);
    assert_int_equal(plan.n_stages, 2);
}

static void test_latency(void **state) {
    (void)state;
    static cluster c;
    mr_plan plan;
    cluster_plain(&c, 3, 9);
    c.config.objective = MR_OBJECTIVE_LATENCY;
    c.ranks[1].layer[0] = curve(1e-6, 9e-5);
    solve(&c, &plan);
    assert_int_equal(plan.n_stages, 1);
    assert_int_equal(plan.stages[0].rank, 1);
    for (int32_t r = 0; r < 3; r++)
        c.ranks[r].memory_bytes = 1000; /* room for seven layers */
    c.config.kv_tokens = 20;
    solve(&c, &plan);
    assert_int_equal(plan.n_stages, 2);
    assert_int_equal(layers_on(&plan, 1), 7);
}

static void test_memory_is_short(void **state) {
    (void)state;
    static cluster c;
    mr_plan plan;
    mr_err err;
    cluster_plain(&c, 2, 8);
    c.config.kv_tokens = 10; /* then a layer takes 110 bytes */
    c.ranks[0].memory_bytes = c.ranks[1].memory_bytes = 550;
    solve(&c, &plan);
    assert_int_equal(plan.n_stages, 2);
    c.ranks[1].memory_bytes = 450;
    expect_fails(mr_planner_solve(&c.config, &plan, &err), MR_E_NO_MEMORY, &err, "does not fit the memory of 2 ranks");
    c.ranks[0].memory_bytes = 0; /* 0: unknown */
    solve(&c, &plan);
    c.config.rank_bytes = 400;
    assert_int_equal(mr_planner_solve(&c.config, &plan, &err), MR_E_NO_MEMORY);
    /* One rank hears the same. The amounts are in units that show them. */
    cluster_plain(&c, 1, 8);
    c.config.kv_tokens = 8;
    c.ranks[0].memory_bytes = 799;
    expect_fails(mr_planner_solve(&c.config, &plan, &err), MR_E_NO_MEMORY, &err,
                 "does not fit the memory of 1 rank: weights take 950 B, a KV cache of 8 tokens 64 B, buffers of each "
                 "stage 20 B; together there are 799 B");
    c.config.memory.layer_bytes[0] = 3 << 20;
    c.ranks[0].memory_bytes = 5 << 20;
    expect_fails(mr_planner_solve(&c.config, &plan, &err), MR_E_NO_MEMORY, &err, "weights take 24.0 MiB, ");
    expect_says(err.text, "together there are 5.0 MiB");
    const mr_plan whole = {.n_stages = 1, .stages = {{.last = 8}}};
    c.ranks[0].memory_bytes = 24 << 20;
    expect_fails(mr_planner_check_memory(&c.config, &whole, &err), MR_E_NO_MEMORY, &err,
                 "has 24.0000 MiB of memory for its stage, layers 0 to 7 with a KV cache of 8 tokens take 24.0002 MiB");
}

static void test_cost_of_a_link(void **state) {
    (void)state;
    static cluster c;
    static mr_plan_prediction p;
    const mr_plan plan = {.n_stages = 3,
                          .stages = {{.first = 0, .last = 3, .rank = 2},
                                     {.first = 3, .last = 6, .rank = 0},
                                     {.first = 6, .last = 9, .rank = 1}}};
    mr_plan_link link;
    cluster_plain(&c, 3, 9);
    c.links[0 * 3 + 1] = (mr_link_facts){20e-3, 1e6};
    mr_plan_predict(&c.facts, &plan, 0, &p);
    assert_true(mr_plan_slowest_link(&c.facts, &plan, &p, 16, &link));
    assert_int_equal(link.from, 0);
    assert_int_equal(link.to, 1);
    double slow = mr_plan_decode_rate(&p, 16, NULL);
    c.links[0 * 3 + 1] = (mr_link_facts){0, 0};
    mr_plan_predict(&c.facts, &plan, 0, &p);
    assert_float_equal(link.cost, 1 - slow / mr_plan_decode_rate(&p, 16, NULL), 0.011);
    assert_true(link.cost > 0.3);
    const mr_plan alone = {.n_stages = 1, .stages = {{.first = 0, .last = 9, .rank = 1}}};
    mr_plan_predict(&c.facts, &alone, 0, &p);
    assert_false(mr_plan_slowest_link(&c.facts, &alone, &p, 16, &link));
}

static void test_memory_of_a_plan(void **state) {
    (void)state;
    static cluster c;
    const mr_plan plan = {.n_stages = 2,
                          .stages = {{.first = 0, .last = 5, .rank = 1}, {.first = 5, .last = 8, .rank = 0}}};
    mr_err err;
    cluster_plain(&c, 2, 8); /* stage 1 on rank 0: 3 layers of 100 bytes, and 20 and 60 bytes beside the KV cache */
    c.ranks[0].memory_bytes = 380 + 3 * 40;
    c.config.kv_tokens = 40;
    expect_ok(mr_planner_check_memory(&c.config, &plan, &err), &err);
    assert_int_equal(mr_planner_kv_tokens(&c.config, &plan), 40);
    c.config.kv_tokens = 41;
    expect_fails(mr_planner_check_memory(&c.config, &plan, &err), MR_E_NO_MEMORY, &err, "rank 0 on node0");
    c.ranks[0].memory_bytes = 379;
    assert_int_equal(mr_planner_kv_tokens(&c.config, &plan), 0);
    c.ranks[0].memory_bytes = c.ranks[1].memory_bytes = 0; /* 0: unknown */
    assert_int_equal(mr_planner_kv_tokens(&c.config, &plan), INT64_MAX);
}

/* Three equal ranks and 61 layers, which from first_slow on are of another kind than before. */
static void cluster_of_kinds(cluster *c, int32_t first_slow) {
    cluster_plain(c, 3, 61);
    c->facts.n_kinds = 2, c->facts.window[1] = 0;
    for (int32_t l = 0; l < 61; l++)
        c->kind[l] = l >= first_slow;
    for (int32_t r = 0; r < 3; r++)
        c->ranks[r].layer[1] = c->ranks[r].layer[0];
}

/* Kinds whose curves differ 5:1: three fast layers, then slow ones. */
static void test_slow_kind(void **state) {
    (void)state;
    static cluster c;
    mr_plan plan;
    cluster_of_kinds(&c, 3);
    for (int32_t r = 0; r < 3; r++)
        c.ranks[r].layer[1] = curve(5e-6, 5e-4);
    compare_with_all(&c, "kinds", 0, 0.001);
    solve(&c, &plan);
    assert_int_equal(plan.stages[0].last, 22); /* 98 of the 293 fast layers that all layers are worth */
    assert_in_range(plan.stages[1].last, 41, 42);
}

/* Kinds whose times differ by their positions only, until a window ends the difference. */
static void test_slow_positions(void **state) {
    (void)state;
    static cluster c;
    mr_plan plan;
    cluster_of_kinds(&c, 40);
    for (int32_t r = 0; r < 3; r++) {
        c.ranks[r].position_s[0] = 1e-7;
        c.ranks[r].position_s[1] = 5e-7 + 4 * 1e-4 / 1000; /* at 1,000 positions a layer takes 5 times as long */
    }
    c.config.depth = 1000;
    compare_with_all(&c, "positions", 0, 1e-6);
    solve(&c, &plan);
    assert_in_range(plan.stages[0].last, 41, 43); /* 48 of 145 */
    c.facts.window[1] = 1;                        /* a row of these layers sees itself only */
    compare_with_all(&c, "windows", 0, 1e-6);
    solve(&c, &plan);
    assert_in_range(plan.stages[0].last, 16, 18); /* a third of 40 layers of twice the time, and 21 */
}

/* Four equal ranks on three hosts, one of which cannot hold the model. */
static void test_hosts_on_their_own(void **state) {
    (void)state;
    static cluster c;
    static mr_plan_prediction p;
    const mr_plan whole = {.n_stages = 1, .stages = {{.first = 0, .last = 8}}};
    mr_planner_alternatives a;
    mr_err err;
    cluster_plain(&c, 4, 8);
    mr_plan_predict(&c.facts, &whole, 0, &p);
    strcpy(c.ranks[3].host, c.ranks[1].host);
    c.ranks[2].memory_bytes = 800;
    expect_ok(mr_planner_compare(&c.config, &a, &err), &err);
    assert_int_equal(a.n_hosts, 2);
    assert_int_equal(a.rank, 1);
    double one = mr_plan_decode_rate(&p, 16, NULL), half = mr_plan_decode_rate(&p, 8, NULL);
    assert_float_equal(a.rate / one, 2, 0.01); /* one process with the cores of two ranks */
    assert_float_equal(a.hosts_rate / half, 3, 0.02);
    for (int32_t r = 0; r < 4; r++)
        c.ranks[r].memory_bytes = 400;
    expect_ok(mr_planner_compare(&c.config, &a, &err), &err);
    assert_int_equal(a.rank, -1);
    assert_true(a.rate == 0 && a.hosts_rate == 0 && a.n_hosts == 0);
}

static void test_out_of_memory(void **state) {
    (void)state;
    static cluster c;
    mr_plan plan;
    mr_planner_alternatives a;
    mr_err err;
    int64_t n = 0;
    cluster_plain(&c, 3, 8);
    for (mr_status status = MR_E_NO_MEMORY; status != MR_OK; n++) {
        mr_mem_fail_at(n);
        status = mr_planner_solve(&c.config, &plan, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
    }
    assert_in_range(n, 8, 40);
    mr_mem_fail_at(0);
    assert_int_equal(mr_planner_compare(&c.config, &a, &err), MR_E_NO_MEMORY);
    mr_mem_fail_at(-1);
}

/* --- Large clusters ---------------------------------------------------------------------------------------------- */

/* The least time in which ranks can have n_layers equal layers together, as whole ones. */
static double least_seconds(const mr_rank_facts *ranks, int32_t n_ranks, int32_t n_layers) {
    double low = 0, high = n_layers * 1.0;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2, n = 0;
        for (int32_t r = 0; r < n_ranks; r++)
            n += floor(middle / mr_step_times_at(&ranks[r].layer[0], 1));
        if (n >= n_layers)
            high = middle;
        else
            low = middle;
    }
    return high;
}

static void large(int32_t n_ranks, int32_t n_layers, int32_t n_hosts, bool distinct) {
    mr_rank_facts *ranks = calloc((size_t)n_ranks, sizeof *ranks);
    mr_link_facts *links = calloc((size_t)n_ranks * (size_t)n_ranks, sizeof *links);
    uint8_t *kind = calloc((size_t)n_layers, 1);
    mr_plan *plan = calloc(1, sizeof *plan);
    assert_true(ranks && links && kind && plan);
    cluster c = {.facts = {.n_ranks = n_ranks,
                           .n_layers = n_layers,
                           .n_kinds = 1,
                           .row_bytes = 16384,
                           .kind = kind,
                           .ranks = ranks,
                           .links = links}};
    for (int32_t r = 0; r < n_ranks; r++) {
        double s = distinct ? random_in(0.5, 2) : 1;
        /* Without a limit of memory, 64 ranks would be enough. */
        uint64_t room = n_ranks > MR_MAX_RING_SLOTS ? (uint64_t)(2 * n_layers / n_ranks) : 0;
        ranks[r] = (mr_rank_facts){
            .layer = {curve(1e-5 * s, 1e-4 * s)}, .output = curve(1e-4, 1e-6), .step_s = 1e-5, .memory_bytes = room};
        snprintf(ranks[r].host, sizeof ranks[r].host, "node%d", (int)(r % n_hosts));
    }
    for (int32_t a = 0; a < n_ranks; a++)
        for (int32_t b = 0; b < n_ranks; b++)
            links[a * n_ranks + b] =
                a % n_hosts == b % n_hosts ? (mr_link_facts){1e-6, 1e10} : (mr_link_facts){3e-5, 1e9};
    c.config = (mr_planner_config){.facts = &c.facts,
                                   .memory = {.layer_bytes = {1}},
                                   .n_sequences = 32 * n_ranks}; /* so many sequences that the time of hops is hidden */
    int64_t start = mr_clock_now_ns();
    solve(&c, plan);
    double took = (double)(mr_clock_now_ns() - start) / 1e9, slowest = 0,
           least = least_seconds(ranks, n_ranks, n_layers);
    for (int32_t i = 0; i < plan->n_stages; i++) {
        const mr_plan_stage *s = &plan->stages[i];
        slowest = fmax(slowest, (s->last - s->first) * mr_step_times_at(&ranks[s->rank].layer[0], 1));
    }
    print_message("%d ranks, %d layers: planned in %.2f s, the slowest stage takes %.2f of the least time\n", n_ranks,
                  n_layers, took, slowest / least);
    assert_true(plan->n_stages >= n_ranks / 2 || plan->n_stages > n_layers / 2);
    /* The slowest stage may also have the output matrix and hops. */
    assert_true(n_ranks > MR_MAX_RING_SLOTS || slowest < 1.06 * least);
    free(ranks);
    free(links);
    free(kind);
    free(plan);
}

static void test_large(void **state) {
    (void)state;
    large(12, 32, 12, true);
    large(12, 80, 3, true);
    large(16, 80, 4, false);
    if (share_is_small())
        return; /* the two largest cases take minutes with a sanitizer */
    large(40, 126, 40, true);
    large(1024, 1024, 256, false);
}

/* The last test, so that the random clusters of the others do not change. */
static void test_devices(void **state) {
    (void)state;
    static cluster c;
    for (int i = share_first(N_CLUSTERS); i < N_CLUSTERS; i += share_get()) {
        cluster_random(&c, random_int(1, 4), random_int(1, 7), i % 3 == 0);
        add_devices(&c);
        compare_with_all(&c, "with devices", i, 0.003);
        c.config.objective = MR_OBJECTIVE_LATENCY;
        compare_with_all(&c, "latency with devices", i, 0.003);
    }
    check_predictions(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_all),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_prediction),
        cmocka_unit_test(test_cost_of_a_link),
        cmocka_unit_test(test_memory_of_a_plan),
        cmocka_unit_test(test_hosts_on_their_own),
        cmocka_unit_test(test_twice_as_fast),
        cmocka_unit_test(test_leaves_out),
        cmocka_unit_test(test_slow_link),
        cmocka_unit_test(test_latency),
        cmocka_unit_test(test_slow_kind),
        cmocka_unit_test(test_slow_positions),
        cmocka_unit_test(test_memory_is_short),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
