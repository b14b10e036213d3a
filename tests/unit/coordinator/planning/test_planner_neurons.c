/* How many partitions of a sparse model's neurons a plan puts on devices. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "coordinator/planning/plan_predict.h"
#include "tests/support/test.h"
#include "tests/unit/coordinator/planning/test_planner_plans.h"

/* A cluster of one rank with a sparse model, whose device is little slower without the neurons. */
static mr_measured_device *make_sparse(cluster *c, int32_t n_layers, int32_t n_partitions) {
    cluster_random(c, 1, n_layers, false);
    memset(c->kind, 1, MAX_LAYERS);
    add_devices(c);
    add_trunks(c);
    mr_measured_device *d = &c->ranks[0].device;
    d->trunk[1] = d->layer[1];
    for (int32_t i = 0; i < d->trunk[1].n; i++)
        d->trunk[1].seconds[i] *= 1.05;
    c->ranks[0].memory_bytes = 1 << 20;
    c->facts.n_partitions = n_partitions;
    c->config.fills_devices = true;
    c->config.kv_tokens = 0;
    return d;
}

/* Layers of sparse models leave the same number of partitions to the host: all trunks on the device, then as many hot
 * partitions as fit. */
static void test_cold_neurons(void **state) {
    (void)state;
    enum { LAYERS = 6, PARTITIONS = 8 };
    static cluster c;
    static mr_plan_prediction cold, all;
    mr_err err;
    mr_measured_device *d = make_sparse(&c, LAYERS, PARTITIONS);
    d->layer_bytes[1] = 100 + 40 * PARTITIONS;
    d->trunk_bytes[1] = 100;
    double rest = (double)(d->stage_bytes + d->head_bytes + d->tail_bytes) + LAYERS * 100;
    for (int32_t n_hot = 0; n_hot <= PARTITIONS; n_hot++) {
        mr_plan plan = {.n_stages = 1, .stages = {{.last = LAYERS}}};
        const mr_plan_stage *s = &plan.stages[0];
        double bytes = rest + n_hot * 40.0 * LAYERS;
        d->memory_bytes = (uint64_t)((bytes + 2) * 64 / 63); /* a plan leaves a part free */
        expect_ok(mr_planner_use_devices(&c.config, &plan, &err), &err);
        assert_int_equal(s->device_layers, LAYERS);
        assert_int_equal(s->host_experts, 0);
        assert_int_equal(s->cold_partitions, PARTITIONS - n_hot);
        assert_float_equal(mr_planner_device_bytes(&c.facts, s, 0), bytes, 1e-6);
        expect_ok(mr_planner_check_memory(&c.config, &plan, &err), &err);
        if (n_hot == PARTITIONS)
            continue;
        mr_plan more = plan;
        more.stages[0].cold_partitions--;
        assert_int_equal(mr_planner_check_memory(&c.config, &more, &err), MR_E_NO_MEMORY);
        /* Between a layer without its neurons and a whole one, in proportion. */
        more.stages[0].cold_partitions = 0;
        mr_plan_predict(&c.facts, &plan, c.config.depth, &cold);
        mr_plan_predict(&c.facts, &more, c.config.depth, &all);
        double trunk = mr_step_times_at(&d->trunk[1], 1), whole = mr_step_times_at(&d->layer[1], 1);
        assert_float_equal(1 / mr_plan_decode_rate(&cold, 1, NULL) - 1 / mr_plan_decode_rate(&all, 1, NULL),
                           LAYERS * (trunk - whole) * s->cold_partitions / PARTITIONS, 1e-9);
    }
}

/* At most as many hot partitions as a GPU index names, even where all would fit. */
static void test_hot_neurons_of_an_index(void **state) {
    (void)state;
    static cluster c;
    mr_err err;
    make_sparse(&c, 4, 10)->memory_bytes = 1 << 20;
    c.config.limits_neurons = true;
    for (int32_t most = 0; most <= 11; most++) {
        mr_plan plan = {.n_stages = 1, .stages = {{.last = 4}}};
        c.config.most_hot_partitions = most;
        expect_ok(mr_planner_use_devices(&c.config, &plan, &err), &err);
        assert_int_equal(plan.stages[0].device_layers, 4);
        assert_int_equal(plan.stages[0].cold_partitions, most < 10 ? 10 - most : 0);
    }
}

/* The neurons that an index leaves to the host count when the planner looks whether the layers fit there. */
static void test_an_index_and_short_memory(void **state) {
    (void)state;
    static cluster c;
    mr_err err;
    make_sparse(&c, 4, 10)->memory_bytes = 1 << 20;
    c.config.limits_neurons = true;
    for (int32_t most = 0; most <= 10; most += 5) {
        mr_plan plan = {.n_stages = 1, .stages = {{.last = 4}}};
        c.config.most_hot_partitions = most;
        int32_t n_layers = (4 * (10 - most) + 9) / 10; /* whose neurons the host has */
        size_t bytes = c.config.memory.stage_bytes + (size_t)n_layers * c.config.memory.layer_bytes[1];
        c.ranks[0].memory_bytes = bytes;
        expect_ok(mr_planner_solve(&c.config, &plan, &err), &err);
        assert_int_equal(plan.stages[0].cold_partitions, 10 - most);
        expect_ok(mr_planner_check_memory(&c.config, &plan, &err), &err);
        c.ranks[0].memory_bytes = bytes - 1;
        assert_int_equal(mr_planner_solve(&c.config, &plan, &err), MR_E_NO_MEMORY);
    }
}

/* The host's memory must have room for the cold neurons. A layer that the device cannot hold whole was not measured. */
static void test_cold_neurons_in_short_memory(void **state) {
    (void)state;
    static cluster c;
    mr_err err;
    mr_measured_device *d = make_sparse(&c, 4, 10);
    d->layer[1].n = 0;
    d->layer_bytes[1] = 5020;
    d->trunk_bytes[1] = 20;
    d->memory_bytes = 4400;
    mr_plan plan = {.n_stages = 1, .stages = {{.last = 4}}};
    expect_ok(mr_planner_use_devices(&c.config, &plan, &err), &err);
    assert_int_equal(plan.stages[0].device_layers, 4);
    assert_int_equal(plan.stages[0].cold_partitions, 8); /* 4 layers with 2 of 10 partitions: 4 * (20 + 1000) bytes */
    c.ranks[0].memory_bytes = c.config.memory.stage_bytes + 2 * c.config.memory.layer_bytes[1];
    assert_int_equal(mr_planner_check_memory(&c.config, &plan, &err), MR_E_NO_MEMORY);
    plan.stages[0].cold_partitions = 5;
    d->memory_bytes = 1 << 20;
    expect_ok(mr_planner_check_memory(&c.config, &plan, &err), &err);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cold_neurons),
        cmocka_unit_test(test_hot_neurons_of_an_index),
        cmocka_unit_test(test_an_index_and_short_memory),
        cmocka_unit_test(test_cold_neurons_in_short_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
