/* The cores of topologies that a text describes, and of this machine. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/cores_internal.h"
#include "engine/base/thread.h"
#include "tests/support/test.h"

/* Two NUMA nodes of four cores with two CPUs each. Linux mostly numbers the first CPU of all cores, then the second. */
#define SMT "pack:2 [numa] core:4 pu:2(indexes=0,8,1,9,2,10,3,11,4,12,5,13,6,14,7,15)"
/* The same without SMT; neighbours in number are on different nodes. */
#define ZIGZAG "pack:2 [numa] core:4 pu:1(indexes=0,2,4,6,1,3,5,7)"

typedef struct cores_case {
    const char *topology;
    const char *group;   /* CPUs of the control group; NULL: all */
    const char *allowed; /* CPUs in the affinity mask of the thread; NULL: all */
    int32_t n_cpus, n_all, n_all_cpus, n;
    int32_t cpu_ids[8];
} cores_case;

static const cores_case CASES[] = {
    {SMT, NULL, NULL, 16, 8, 16, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    {SMT, NULL, "1,5,9-10", 4, 8, 16, 3, {1, 10, 5}},
    {SMT, NULL, "8-15", 8, 8, 16, 8, {8, 9, 10, 11, 12, 13, 14, 15}},
    {SMT, "4-7,12-15", NULL, 8, 4, 8, 4, {4, 5, 6, 7}},
    {SMT, "2,10,12", "0-12", 3, 2, 3, 2, {2, 12}},
    {ZIGZAG, NULL, NULL, 8, 8, 8, 8, {0, 2, 4, 6, 1, 3, 5, 7}},
    {ZIGZAG, NULL, "3,4", 2, 8, 8, 2, {4, 3}},
    {"numa:1 pu:3", NULL, NULL, 3, 3, 3, 3, {0, 1, 2}}, /* a topology without cores */
    {"core:2 pu:1", NULL, NULL, 2, 2, 2, 2, {0, 1}},
};

static void check_case(const cores_case *c, mr_cores *out) {
    hwloc_topology_t t;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    assert_int_equal(hwloc_topology_init(&t), 0);
    assert_int_equal(hwloc_topology_set_synthetic(t, c->topology), 0);
    assert_int_equal(hwloc_topology_load(t), 0);
    if (c->group) {
        assert_int_equal(hwloc_bitmap_list_sscanf(set, c->group), 0);
        assert_int_equal(hwloc_topology_restrict(t, set, 0), 0);
    }
    hwloc_bitmap_copy(set, hwloc_topology_get_allowed_cpuset(t));
    if (c->allowed)
        assert_int_equal(hwloc_bitmap_list_sscanf(set, c->allowed), 0);
    cores_of_topology(t, set, out);
    hwloc_topology_destroy(t);
    hwloc_bitmap_free(set);
}

static void test_topologies(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const cores_case *c = &CASES[i];
        mr_cores got;
        check_case(c, &got);
        if (got.n != c->n || got.n_cpus != c->n_cpus || got.n_all != c->n_all || got.n_all_cpus != c->n_all_cpus)
            fail_msg("case %zu: %d of %d cores, %d of %d CPUs", i, got.n, got.n_all, got.n_cpus, got.n_all_cpus);
        for (int32_t k = 0; k < c->n; k++)
            if (got.cpu_ids[k] != c->cpu_ids[k])
                fail_msg("case %zu: core %d is CPU %d", i, k, got.cpu_ids[k]);
    }
}

static void pin_and_look(void *ctx) {
    mr_cores *cores = ctx;
    int32_t last = cores->cpu_ids[cores->n - 1];
    if (mr_thread_pin(last, NULL) == MR_OK)
        mr_cores_get(cores);
}

static void test_this_machine(void **state) {
    (void)state;
    mr_cores all, one;
    mr_cores_get(&all);
    assert_true(all.n >= 1 && all.n <= all.n_cpus && all.n <= all.n_all && all.n_cpus <= all.n_all_cpus);
    assert_in_range(mr_cores_usable(&all), 1, all.n);
    mr_thread *t = NULL;
    one = all;
    assert_int_equal(mr_thread_create("pinned", 0, pin_and_look, &one, &t, NULL), MR_OK);
    mr_thread_join(t);
    assert_int_equal(one.n, 1);
    assert_int_equal(one.n_cpus, 1);
    assert_int_equal(one.n_all, all.n_all);
    assert_int_equal(one.cpu_ids[0], all.cpu_ids[all.n - 1]);
    assert_int_equal(mr_cores_usable(&one), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_topologies), cmocka_unit_test(test_this_machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
