/* Which layers the planner gives to a device with and without their experts, and how many experts of the latter: beside
 * all other choices, on random clusters of one rank, and where the best choice is obvious. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/planning/plan_predict.h"
#include "tests/support/test.h"
#include "tests/unit/coordinator/planning/test_planner_plans.h"

enum { N_CLUSTERS = 60 };

/* The least seconds of a stage for any number of layers on the device, and of experts in the host's memory. */
static double least_of_stage(const cluster *c, mr_plan_stage s) {
    double least = INFINITY;
    for (s.device_layers = 0; s.device_layers <= s.last; s.device_layers++)
        for (s.host_experts = 0; s.host_experts <= s.device_layers; s.host_experts++)
            if (stage_fits(c, &s))
                least = fmin(least, stage_seconds(c, &s, 1));
    return least;
}

/* Layers are not divided, so the best plan may be faster by a layer or two. */
static void test_experts_in_the_host(void **state) {
    (void)state;
    static cluster c;
    static mr_plan_prediction p;
    int32_t n_with = 0;
    for (int i = 0; i < N_CLUSTERS; i++) {
        mr_err err;
        cluster_random(&c, 1, random_int(1, 12), false);
        memset(c.kind, i % 2, MAX_LAYERS); /* kind 0 has no experts */
        add_devices(&c);
        add_trunks(&c);
        c.ranks[0].memory_bytes = 1 << 20;
        c.config.objective = MR_OBJECTIVE_LATENCY;
        mr_plan plan = {.n_stages = 1, .stages = {{.last = c.facts.n_layers}}};
        const mr_plan_stage *s = &plan.stages[0];
        expect_ok(mr_planner_use_devices(&c.config, &plan, &err), &err);
        assert_true(stage_fits(&c, s));
        assert_true(i % 2 || s->host_experts == 0);
        n_with += s->host_experts > 0;
        int k = i % 2;
        double layer = c.ranks[0].layer[k].seconds[0] + c.ranks[0].position_s[k] * c.config.depth;
        assert_true(stage_seconds(&c, s, 1) <= least_of_stage(&c, *s) + 2 * layer);
        if (mr_planner_device_bytes(&c.facts, s, c.config.kv_tokens) > 0)
            assert_true(mr_planner_device_bytes(&c.facts, s, c.config.kv_tokens) <=
                        (double)c.ranks[0].device.memory_bytes);
        mr_plan_predict(&c.facts, &plan, c.config.depth, &p);
        assert_float_equal(mr_plan_decode_rate(&p, 1, NULL) * seconds_with(&c, &plan, 1, 1, false), 1, 1e-9);
    }
    assert_true(n_with > N_CLUSTERS / 10);
}

/* The same, with experts of each such layer on the device, too. */
static double least_with_experts(const cluster *c, mr_plan_stage s) {
    double least = INFINITY;
    for (s.device_experts = 0; s.device_experts <= c->facts.n_experts; s.device_experts++)
        least = fmin(least, least_of_stage(c, s));
    return least;
}

/* A few experts may have most of the rows, or all have the same part. */
static void test_some_experts_on_the_device(void **state) {
    (void)state;
    enum { EXPERTS = 16 };
    static cluster c;
    static mr_plan_prediction p;
    double shares[EXPERTS + 1];
    int32_t n_some = 0, n_of_all_layers = 0;
    for (int e = 0; e <= EXPERTS; e++)
        shares[e] = sqrt((double)e / EXPERTS);
    for (int i = 0; i < N_CLUSTERS; i++) {
        mr_err err;
        cluster_random(&c, 1, random_int(1, 12), false);
        memset(c.kind, 1, MAX_LAYERS);
        add_devices(&c);
        add_trunks(&c);
        c.ranks[0].memory_bytes = 1 << 20;
        c.config.objective = MR_OBJECTIVE_LATENCY;
        c.facts.n_experts = EXPERTS;
        c.facts.expert_shares = i % 2 ? shares : NULL;
        mr_plan plan = {.n_stages = 1, .stages = {{.last = c.facts.n_layers}}};
        const mr_plan_stage *s = &plan.stages[0];
        expect_ok(mr_planner_use_devices(&c.config, &plan, &err), &err);
        assert_true(stage_fits(&c, s));
        assert_true(s->device_experts == 0 || s->host_experts > 0);
        n_some += s->device_experts > 0;
        n_of_all_layers += s->device_experts > 0 && s->host_experts == s->device_layers;
        double layer = c.ranks[0].layer[1].seconds[0] + c.ranks[0].position_s[1] * c.config.depth;
        assert_true(stage_seconds(&c, s, 1) <= least_with_experts(&c, *s) + 2 * layer);
        if (s->device_layers > 0)
            assert_true(mr_planner_device_bytes(&c.facts, s, c.config.kv_tokens) <=
                        (double)c.ranks[0].device.memory_bytes);
        mr_plan_predict(&c.facts, &plan, c.config.depth, &p);
        assert_float_equal(mr_plan_decode_rate(&p, 1, NULL) * seconds_with(&c, &plan, 1, 1, false), 1, 1e-9);
    }
    print_message("some experts of layers in %d of %d plans, of all layers in %d\n", n_some, N_CLUSTERS,
                  n_of_all_layers);
    assert_true(n_some > N_CLUSTERS / 10 && n_of_all_layers > N_CLUSTERS / 40 && n_of_all_layers < n_some);
}

/* With a profile that says so, the device gets a few experts of each layer; without one, whole layers first. */
static void test_hot_experts_come_first(void **state) {
    (void)state;
    static cluster c;
    static const double SHARES[] = {0, 0.7, 0.8, 0.9, 1};
    mr_err err;
    cluster_random(&c, 1, 6, false);
    memset(c.kind, 1, MAX_LAYERS);
    add_devices(&c);
    mr_measured_device *d = &c.ranks[0].device;
    c.ranks[0].memory_bytes = 1 << 20;
    d->layer_bytes[1] = 500;
    d->trunk_bytes[1] = 100;
    d->stage_bytes = d->head_bytes = d->tail_bytes = d->token_bytes[1] = 0;
    d->memory_bytes = (6 * 100 + 2 * 400 + 1) * 64 / 63 + 1; /* trunks, and all experts of two layers */
    d->crossing = (mr_step_times){.n = 1, .rows = {1}};
    for (int32_t i = 0; i < c.ranks[0].layer[1].n; i++) {
        double s = c.ranks[0].layer[1].seconds[i];
        d->layer[1].seconds[i] = 0.1 * s;
        d->trunk[1].seconds[i] = 0.5 * s;
    }
    d->trunk[1].n = d->layer[1].n = c.ranks[0].layer[1].n;
    memcpy(d->trunk[1].rows, d->layer[1].rows, sizeof d->trunk[1].rows);
    c.config.objective = MR_OBJECTIVE_LATENCY;
    c.facts.n_experts = 4;
    for (int hot = 0; hot < 2; hot++) {
        c.facts.expert_shares = hot ? SHARES : NULL;
        mr_plan plan = {.n_stages = 1, .stages = {{.last = 6}}};
        expect_ok(mr_planner_use_devices(&c.config, &plan, &err), &err);
        assert_int_equal(plan.stages[0].device_layers, 6);
        assert_int_equal(plan.stages[0].host_experts, hot ? 6 : 4);
        assert_int_equal(plan.stages[0].device_experts, hot ? 1 : 0);
    }
}

/* The device has no memory for a whole layer with its experts. */
static void test_experts_too_large(void **state) {
    (void)state;
    static cluster c;
    mr_err err;
    cluster_random(&c, 1, 6, false);
    memset(c.kind, 1, MAX_LAYERS);
    add_devices(&c);
    add_trunks(&c);
    mr_measured_device *d = &c.ranks[0].device;
    c.ranks[0].memory_bytes = 1 << 20;
    d->layer[1].n = 0;
    d->layer_bytes[1] = 5000;
    d->trunk_bytes[1] = 20;
    d->memory_bytes = 1000;
    c.config.fills_devices = true;
    mr_plan plan = {.n_stages = 1, .stages = {{.last = 6}}};
    expect_ok(mr_planner_use_devices(&c.config, &plan, &err), &err);
    assert_int_equal(plan.stages[0].device_layers, 6);
    assert_int_equal(plan.stages[0].host_experts, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_in_the_host),
        cmocka_unit_test(test_experts_too_large),
        cmocka_unit_test(test_some_experts_on_the_device),
        cmocka_unit_test(test_hot_experts_come_first),
    };
    return cmocka_run_group_tests_name("planner_experts", tests, NULL, NULL);
}
