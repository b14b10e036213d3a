/* The experts that devices get by a profile: the lists that travel with the plan, and what a stage makes of them. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/job/hot_experts.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"
#include "worker/stage/expert_order.h"

enum { EXPERTS = 4 };

/* A profile of layers 1, 2 and 3. */
static uint64_t counts[3][EXPERTS] = {{1, 9, 5, 9}, {0, 0, 0, 7}, {4, 3, 2, 1}};
static mr_profile_layer layers[3] = {
    {1, EXPERTS, EXPERTS, counts[0]}, {2, EXPERTS, EXPERTS, counts[1]}, {3, EXPERTS, EXPERTS, counts[2]}};
static const mr_profile PROFILE = {.n_rows = 10, .layers = layers, .n_layers = 3};

/* Two stages, of which the second leaves no experts to the host. */
static mr_plan plan_of(int32_t host_experts, int32_t device_experts) {
    return (mr_plan){
        .n_stages = 2,
        .stages = {{.last = 4, .device_layers = 3, .host_experts = host_experts, .device_experts = device_experts},
                   {.first = 4, .last = 6, .device_layers = 1}}};
}

static void test_lists(void **state) {
    (void)state;
    static mr_plan plan;
    static mr_hot_experts hot;
    mr_err err = {0};
    plan = plan_of(3, 2);
    expect_ok(mr_hot_experts_list(&plan, &PROFILE, &hot, &err), &err);
    static const uint32_t WANT[] = {0, 1, 1, 3, 3, 0}; /* layer 0 has no counts */
    assert_int_equal(hot.n[0], 6);
    assert_int_equal(hot.n[1], 0);
    assert_memory_equal(hot.at, WANT, sizeof WANT);
    mr_hot_experts_deinit(&hot);
}

static void test_without_lists(void **state) {
    (void)state;
    static mr_plan plan;
    static mr_hot_experts hot;
    mr_err err = {0};
    mr_profile neurons = PROFILE;
    neurons.is_neurons = true;
    const struct {
        int32_t host_experts, device_experts;
        const mr_profile *profile;
    } cases[] = {{3, 2, NULL}, {3, 0, &PROFILE}, {3, 2, &neurons}, {9, MR_MAX_EXPERTS, &PROFILE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plan = plan_of(cases[i].host_experts, cases[i].device_experts);
        expect_ok(mr_hot_experts_list(&plan, cases[i].profile, &hot, &err), &err);
        assert_null(hot.at);
        assert_int_equal(hot.n[0], 0);
        mr_hot_experts_deinit(&hot);
    }
}

static void test_orders(void **state) {
    (void)state;
    static const mr_devices_share SHARE = {3, 2, 2, 0};
    static const int32_t WANT[4][EXPERTS] = {{0, 1, 2, 3}, {1, 3, 0, 2}, {3, 0, 1, 2}, {0, 1, 2, 3}};
    uint32_t held[] = {1, 3, 3, 0};
    int32_t *order = NULL;
    mr_err err = {0};
    expect_ok(mr_expert_order_make(held, &SHARE, 4, EXPERTS, &order, &err), &err);
    assert_memory_equal(order, WANT, sizeof WANT);
    mr_free(order);
    held[1] = EXPERTS;
    expect_fails(mr_expert_order_make(held, &SHARE, 4, EXPERTS, &order, &err), MR_E_PROTOCOL, &err,
                 "expert 4 of a layer with 4");
    held[1] = 1;
    expect_fails(mr_expert_order_make(held, &SHARE, 4, EXPERTS, &order, &err), MR_E_PROTOCOL, &err, "expert 1");
}

/* The part of the uses that falls on the most used experts: the mean over the layers. */
static void test_shares(void **state) {
    (void)state;
    double shares[EXPERTS + 1];
    mr_err err = {0};
    expect_ok(mr_profile_shares(&PROFILE, shares, &err), &err);
    assert_float_equal(shares[0], 0, 0);
    assert_float_equal(shares[1], (9.0 / 24 + 1 + 0.4) / 3, 1e-12);
    assert_float_equal(shares[2], (18.0 / 24 + 1 + 0.7) / 3, 1e-12);
    assert_float_equal(shares[EXPERTS], 1, 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_without_lists),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_shares),
    };
    return cmocka_run_group_tests_name("hot_experts", tests, NULL, NULL);
}
