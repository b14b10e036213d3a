/* The way of each hop: by what two ranks say of their devices, where their layers are, and what the user wants. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/hop_ways.h"
#include "tests/support/test.h"

enum { N = 3, VERSION = 22809 };

/* Three stages of two layers, all on devices, of ranks 2, 0 and 1. */
static mr_plan plan_of(void) {
    mr_plan plan = {.n_stages = N};
    for (int32_t i = 0; i < N; i++)
        plan.stages[i] = (mr_plan_stage){.first = 2 * i, .last = 2 * i + 2, .rank = (i + 2) % N, .device_layers = 2};
    return plan;
}

static void fill(mr_rank_links out[N]) {
    for (int32_t i = 0; i < N; i++)
        out[i] = (mr_rank_links){.has_device = true, .uuid = {7, (uint64_t)i}, .nccl_version = VERSION};
}

static void expect_ways(mr_plan *plan, const mr_rank_links *links, mr_way wish, mr_way first, mr_way second) {
    mr_err err = {0};
    const mr_ways_desc desc = {.links = links, .n_ranks = links ? N : 0, .wish = wish};
    expect_ok(mr_plan_choose_ways(plan, &desc, &err), &err);
    assert_int_equal(plan->stages[0].way, first);
    assert_int_equal(plan->stages[1].way, second);
    assert_int_equal(plan->stages[2].way, MR_WAY_HOST);
    assert_int_equal(plan->must_ways, wish == MR_WAY_NCCL || wish == MR_WAY_POINTERS);
}

static void test_devices_with_nccl(void **state) {
    (void)state;
    mr_plan plan = plan_of();
    mr_rank_links links[N];
    fill(links);
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_NCCL, MR_WAY_NCCL);
    expect_ways(&plan, links, MR_WAY_NCCL, MR_WAY_NCCL, MR_WAY_NCCL);
    expect_ways(&plan, links, MR_WAY_HOST, MR_WAY_HOST, MR_WAY_HOST);
    expect_ways(&plan, NULL, MR_WAY_AUTO, MR_WAY_HOST, MR_WAY_HOST);
}

/* Only hops whose rows come from a device and go to one leave the hosts. */
static void test_layers_on_the_cpu(void **state) {
    (void)state;
    mr_rank_links links[N];
    fill(links);
    mr_plan plan = plan_of();
    plan.stages[1].device_layers = 1; /* its last layer is on the CPU */
    expect_ways(&plan, links, MR_WAY_NCCL, MR_WAY_NCCL, MR_WAY_HOST);
    plan.stages[1].device_layers = 0;
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_HOST, MR_WAY_HOST);
    plan = plan_of();
    plan.stages[1].host_experts = 1;
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_NCCL, MR_WAY_HOST);
    plan = plan_of();
    plan.stages[1].host_experts = 0;
    plan.stages[1].cold_partitions = 3;
    plan.n_partitions = 4;
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_NCCL, MR_WAY_NCCL);
    plan.stages[1].cold_partitions = 4;
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_NCCL, MR_WAY_HOST);
    plan = plan_of();
    plan.synthetic = true;
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_HOST, MR_WAY_HOST);
}

static void expect_refused(mr_way wish, const mr_rank_links *links, const char *words) {
    mr_err err = {0};
    mr_plan plan = plan_of();
    const mr_ways_desc desc = {.links = links, .n_ranks = N, .wish = wish};
    expect_fails(mr_plan_choose_ways(&plan, &desc, &err), MR_E_UNSUPPORTED, &err, words);
}

static void test_ranks_that_cannot(void **state) {
    (void)state;
    mr_rank_links links[N];
    mr_plan plan = plan_of();
    fill(links);
    links[1].nccl_version = 0;
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_NCCL, MR_WAY_HOST);
    expect_refused(MR_WAY_NCCL, links, "--link nccl: ranks 0 and 1 cannot: the second one has no NCCL");
    links[1].nccl_version = VERSION + 1;
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_NCCL, MR_WAY_HOST);
    expect_refused(MR_WAY_NCCL, links, "their versions of NCCL are 22809 and 22810");
    fill(links);
    links[0].uuid[1] = 2;
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_HOST, MR_WAY_NCCL);
    expect_refused(MR_WAY_NCCL, links, "ranks 2 and 0 cannot: both use one device");
    fill(links);
    links[2].has_device = false;
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_HOST, MR_WAY_NCCL);
    expect_refused(MR_WAY_POINTERS, links, "they say nothing of devices");
}

/* Where NCCL cannot be had, addresses are next. */
static void test_pointers(void **state) {
    (void)state;
    mr_rank_links links[N];
    mr_plan plan = plan_of();
    fill(links);
    expect_refused(MR_WAY_POINTERS, links, "the MPI library does not take addresses of devices");
    for (int32_t i = 0; i < N; i++)
        links[i].device_pointers = true;
    expect_ways(&plan, links, MR_WAY_POINTERS, MR_WAY_POINTERS, MR_WAY_POINTERS);
    links[1].nccl_version = 0;
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_NCCL, MR_WAY_POINTERS);
    links[0].uuid[1] = 2; /* one device */
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_POINTERS, MR_WAY_POINTERS);
    links[0].device_pointers = false;
    expect_ways(&plan, links, MR_WAY_AUTO, MR_WAY_HOST, MR_WAY_HOST);
}

static void expect_measured(const mr_way_facts *ways, int32_t n, const mr_rank_links *links, mr_way first,
                            mr_way second) {
    mr_rank_facts ranks[N] = {{.host = "a"}, {.host = "b"}, {.host = "a"}};
    const mr_cluster_facts facts = {.n_ranks = N, .row_bytes = 1000, .ranks = ranks, .ways = ways, .n_ways = n};
    const mr_ways_desc desc = {links, N, &facts, 10, MR_WAY_AUTO};
    mr_plan plan = plan_of();
    mr_err err = {0};
    expect_ok(mr_plan_choose_ways(&plan, &desc, &err), &err);
    assert_int_equal(plan.stages[0].way, first);
    assert_int_equal(plan.stages[1].way, second);
}

/* The fastest way for rows of 10,000 bytes, as measured between the ranks or between others of the same hosts. */
static void test_measured(void **state) {
    (void)state;
    mr_rank_links links[N];
    fill(links);
    /* Between ranks 2 and 0, NCCL is slower for small payloads, and faster from 8,000 bytes on. */
    mr_way_facts ways[] = {{2, 0, MR_WAY_HOST, {1e-6, 1e9}, ""},
                           {2, 0, MR_WAY_NCCL, {5e-6, 2e9}, ""},
                           {0, 1, MR_WAY_HOST, {1e-6, 1e9}, ""},
                           {0, 1, MR_WAY_NCCL, {20e-6, 2e9}, ""}};
    expect_measured(ways, 4, links, MR_WAY_NCCL, MR_WAY_HOST);
    ways[1].link.latency_s = 7e-6;
    expect_measured(ways, 4, links, MR_WAY_HOST, MR_WAY_HOST);
    ways[1] = (mr_way_facts){2, 0, MR_WAY_NCCL, {0, 0}, "system error"};
    ways[3].link.latency_s = 1e-6;
    expect_measured(ways, 4, links, MR_WAY_HOST, MR_WAY_NCCL);
    expect_measured(&ways[1], 1, links, MR_WAY_HOST, MR_WAY_NCCL); /* the other hop by rule */
    ways[3].from = 2;                                              /* between the same hosts as ranks 0 and 1 */
    expect_measured(&ways[2], 2, links, MR_WAY_NCCL, MR_WAY_NCCL);
    ways[3].link.latency_s = 1e-3;
    expect_measured(&ways[2], 2, links, MR_WAY_NCCL, MR_WAY_HOST);
    expect_measured(ways, 0, links, MR_WAY_NCCL, MR_WAY_NCCL);
    /* What was measured must not be had by other ranks of the same hosts. */
    links[1].nccl_version = 0;
    ways[3].link.latency_s = 1e-6;
    expect_measured(&ways[2], 2, links, MR_WAY_NCCL, MR_WAY_HOST);
}

static void test_a_named_way_that_failed(void **state) {
    (void)state;
    mr_rank_links links[N];
    mr_rank_facts ranks[N] = {0};
    const mr_way_facts way = {2, 0, MR_WAY_NCCL, {0, 0}, "system error"};
    const mr_cluster_facts facts = {.n_ranks = N, .ranks = ranks, .ways = &way, .n_ways = 1};
    const mr_ways_desc desc = {links, N, &facts, 10, MR_WAY_NCCL};
    mr_plan plan = plan_of();
    mr_err err = {0};
    fill(links);
    expect_fails(mr_plan_choose_ways(&plan, &desc, &err), MR_E_UNSUPPORTED, &err,
                 "--link nccl: ranks 2 and 0 cannot: system error");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices_with_nccl), cmocka_unit_test(test_layers_on_the_cpu),
        cmocka_unit_test(test_ranks_that_cannot), cmocka_unit_test(test_pointers),
        cmocka_unit_test(test_measured),          cmocka_unit_test(test_a_named_way_that_failed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
