/* The place that a launcher gave this process, and the CPUs that the process gets there. Every case runs in a child
 * process with its own environment and CPUs. */
// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coordinator/session/rank_place.h"
#include "engine/base/thread.h"
#include "tests/support/test.h"

/* In a child without variables of a launcher: body's result is its exit status. */
static int in_child(int (*body)(const void *ctx), const void *ctx) {
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        clearenv();
        _exit(body(ctx));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* "NAME=VALUE" one after the other, ended by NULL. */
typedef struct place_case {
    const char *env[8];
    mr_rank_place want;
} place_case;

static int check_place(const void *ctx) {
    const place_case *c = ctx;
    for (int i = 0; c->env[i]; i++)
        putenv((char *)(uintptr_t)c->env[i]);
    mr_rank_place p = mr_rank_place_get();
    return p.rank == c->want.rank && p.n_ranks == c->want.n_ranks && p.local_rank == c->want.local_rank &&
                   p.n_local == c->want.n_local
               ? 0
               : 1;
}

#define OMPI(rank, size, local_rank, local_size)                                                                       \
    "OMPI_COMM_WORLD_RANK=" rank, "OMPI_COMM_WORLD_SIZE=" size, "OMPI_COMM_WORLD_LOCAL_RANK=" local_rank,              \
        "OMPI_COMM_WORLD_LOCAL_SIZE=" local_size

#define SLURM(rank, size, local_rank, counts, node)                                                                    \
    "PMIX_RANK=" rank, "SLURM_STEP_NUM_TASKS=" size, "SLURM_LOCALID=" local_rank, "SLURM_STEP_TASKS_PER_NODE=" counts, \
        "SLURM_NODEID=" node

static void test_places(void **state) {
    (void)state;
    static const place_case cases[] = {
        {{NULL}, {0, 1, 0, 1}},
        {{OMPI("3", "4", "1", "2")}, {3, 4, 1, 2}},
        {{OMPI("0", "1", "0", "1")}, {0, 1, 0, 1}},
        {{"PMI_RANK=2", "PMI_SIZE=6", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=3"}, {2, 6, 0, 3}},
        {{"PMI_RANK=2", "PMI_SIZE=6"}, {2, 6, 0, 1}},
        {{"PMIX_RANK=5", "SLURM_STEP_NUM_TASKS=6", "SLURM_LOCALID=1", "SLURM_STEP_TASKS_PER_NODE=2(x3)"}, {5, 6, 1, 2}},
        {{"PMIX_RANK=2", "SLURM_STEP_NUM_TASKS=3", "SLURM_LOCALID=0", "SLURM_STEP_TASKS_PER_NODE=2,1"}, {2, 3, 0, 2}},
        /* Nodes with different numbers of ranks. */
        {{SLURM("5", "6", "3", "2,4", "1")}, {5, 6, 3, 4}},
        {{SLURM("1", "6", "1", "2,4", "0")}, {1, 6, 1, 2}},
        {{SLURM("6", "7", "0", "2(x3),1", "3")}, {6, 7, 0, 1}},
        {{SLURM("5", "7", "1", "2(x3),1", "2")}, {5, 7, 1, 2}},
        {{SLURM("4", "8", "0", "1,3(x2),1", "2")}, {4, 8, 0, 3}},
        {{SLURM("6", "7", "0", "2(x3),1", "4")}, {6, 7, 0, 1}}, /* the list has no such node */
        {{SLURM("5", "6", "1", "2(x3", "2")}, {5, 6, 0, 1}},
        {{SLURM("5", "6", "1", "2(x0),2", "2")}, {5, 6, 0, 1}},
        {{SLURM("5", "6", "1", "2(x99999999999),2", "2")}, {5, 6, 0, 1}},
        {{SLURM("5", "6", "1", "2;2;2", "2")}, {5, 6, 0, 1}},
        {{SLURM("5", "6", "1", "", "2")}, {5, 6, 0, 1}},
        {{SLURM("5", "6", "1", "2,,2", "2")}, {5, 6, 0, 1}},
        {{SLURM("5", "6", "1", "9,2", "0")}, {5, 6, 0, 1}}, /* more ranks on the node than in the job */
        /* A shell inside an allocation, and incomplete variables of a launcher. */
        {{"SLURM_STEP_NUM_TASKS=6", "SLURM_LOCALID=1"}, {0, 1, 0, 1}},
        {{"PMIX_RANK=1"}, {0, 1, 0, 1}},
        {{"OMPI_COMM_WORLD_RANK=1"}, {0, 1, 0, 1}},
        /* Values that are malformed or contradict each other. */
        {{OMPI("4", "4", "0", "1")}, {0, 1, 0, 1}},
        {{OMPI("-1", "4", "0", "1")}, {0, 1, 0, 1}},
        {{OMPI("0", "0", "0", "1")}, {0, 1, 0, 1}},
        {{OMPI("", "", "", "")}, {0, 1, 0, 1}},
        {{OMPI("x", "4", "0", "1")}, {0, 1, 0, 1}},
        {{OMPI("1", "99999999999999999999", "0", "1")}, {0, 1, 0, 1}},
        {{OMPI("1", "4", "2", "2")}, {1, 4, 0, 1}},
        {{OMPI("1", "4", "0", "5")}, {1, 4, 0, 1}},
        {{OMPI("1", "4", "0", "0")}, {1, 4, 0, 1}},
        {{OMPI("1", "4", "-1", "2")}, {1, 4, 0, 1}},
        /* The first launcher with valid variables counts. */
        {{OMPI("1", "4", "1", "2"), "PMI_RANK=0", "PMI_SIZE=9"}, {1, 4, 1, 2}},
        {{"OMPI_COMM_WORLD_RANK=9", "OMPI_COMM_WORLD_SIZE=4", "PMI_RANK=2", "PMI_SIZE=9"}, {2, 9, 0, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (in_child(check_place, &cases[i]) != 0)
            fail_msg("case %zu: %s", i, cases[i].env[0] ? cases[i].env[0] : "nothing set");
}

/* --- Shares ------------------------------------------------------------------------------------------------------ */

static mr_cores cores_of_host;
static int32_t *const all = cores_of_host.cpu_ids;
static int32_t n_all;

static rank_share share_of(int32_t local_rank, int32_t n_local) {
    mr_rank_place place = {local_rank, n_local, local_rank, n_local};
    rank_share s;
    rank_place_share(&place, &s);
    return s;
}

/* The shares of all ranks of a host are its CPUs, each once, and even. */
static int check_even_shares(const void *ctx) {
    int32_t n_local = *(const int32_t *)ctx;
    int next = 0;
    mr_cores now;
    mr_cores_get(&now);
    int32_t cores = mr_cores_usable(&now);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    for (int32_t i = 0; i < n_local; i++) {
        rank_share s = share_of(i, n_local);
        if (n_all < n_local) {
            if (s.n_cpus != 0 || s.n_cores != 1)
                return 1;
            continue;
        }
        if (s.n_cpus < n_all / n_local || s.n_cpus > n_all / n_local + 1)
            return 2;
        for (int32_t k = 0; k < s.n_cpus; k++)
            if (s.cpu_ids[k] != all[next++])
                return 3;
        if (s.n_cores < 1 || s.n_cores > s.n_cpus || s.n_cores > (cores < n_local ? 1 : cores / n_local))
            return 4;
    }
    return n_all < n_local || next == n_all ? 0 : 5;
}

static void test_even_shares(void **state) {
    (void)state;
    for (int32_t n = 1; n <= 8; n++) {
        int code = in_child(check_even_shares, &n);
        if (code != 0)
            fail_msg("%d ranks: check %d", (int)n, code);
    }
}

/* mpirun binds each rank to one core by default. Such a binding is undone, and the rank gets its share of all cores. */
static int check_undone(const void *ctx) {
    (void)ctx;
    mr_err err;
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_MCA_orte_bound_at_launch", "1", 1);
    if (mr_thread_pin(all[0], &err) != MR_OK)
        return 1;
    rank_share s = share_of(0, 1);
    return s.n_cpus == n_all ? 0 : 2;
}

/* A binding that the user has chosen stays. */
static int check_chosen(const void *ctx) {
    mr_err err;
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_MCA_hwloc_base_binding_policy", ctx, 1);
    if (mr_thread_pin(all[n_all - 1], &err) != MR_OK)
        return 1;
    rank_share s = share_of(0, 2);
    return s.n_cpus == 1 && s.cpu_ids[0] == all[n_all - 1] && s.n_cores == 1 ? 0 : 2;
}

/* mpirun --bind-to none: nothing is bound, so the ranks divide the CPUs. */
static int check_bound_to_none(const void *ctx) {
    (void)ctx;
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
    rank_share s = share_of(n_all - 1, n_all);
    return s.n_cpus == 1 && s.cpu_ids[0] == all[n_all - 1] ? 0 : 1;
}

/* taskset and the like are not undone: the ranks divide what they are left with. */
static int check_narrowed(const void *ctx) {
    (void)ctx;
    mr_err err;
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
    if (mr_thread_pin(all[n_all - 1], &err) != MR_OK)
        return 1;
    rank_share s = share_of(0, 1);
    return s.n_cpus == 1 && s.cpu_ids[0] == all[n_all - 1] ? 0 : 2;
}

/* Ranks that are bound to the same CPUs share them, and none is bound to one. */
static int check_overlap(const void *ctx) {
    (void)ctx;
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "socket", 1);
    rank_share s = share_of(0, 1000);
    return s.n_cpus == 0 && s.n_cores == 1 ? 0 : 1;
}

static int check_take(const void *ctx) {
    (void)ctx;
    mr_cores now;
    rank_share s = {.n_cpus = 1, .cpu_ids = {all[n_all - 1]}, .n_cores = 1}, none = {.n_cores = 1};
    rank_place_take_share(&none);
    mr_cores_get(&now);
    if (now.n != n_all)
        return 1;
    rank_place_take_share(&s);
    mr_cores_get(&now);
    return now.n == 1 && now.cpu_ids[0] == all[n_all - 1] ? 0 : 2;
}

/* Hosts that this machine is not: two NUMA nodes of four cores, two CPUs each. */
typedef struct division {
    int32_t local_rank, n_local;
    bool chosen;
    int32_t n_seen, usable; /* cores that the rank sees, and cores that it can keep busy */
    int32_t n_cpus, first, n_cores;
} division;

static const division DIVISIONS[] = {
    {0, 1, false, 8, 8, 8, 0, 8}, {0, 2, false, 8, 8, 4, 0, 4}, {1, 2, false, 8, 8, 4, 4, 4},
    {3, 4, false, 8, 8, 2, 6, 2}, {0, 3, false, 8, 8, 2, 0, 2}, {1, 3, false, 8, 8, 3, 2, 2},
    {2, 3, false, 8, 8, 3, 5, 2}, {7, 8, false, 8, 8, 1, 7, 1}, {0, 9, false, 8, 8, 0, 0, 1},
    {1, 2, false, 8, 2, 4, 4, 1}, /* a quota of two CPUs */
    {1, 2, false, 4, 4, 2, 2, 2}, /* a control group with four cores for all ranks */
    {1, 2, true, 4, 4, 4, 0, 4},  /* each rank is bound to four cores */
    {1, 4, true, 8, 8, 0, 0, 2},  /* all ranks are bound to the same eight cores */
};

static void test_divisions(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof DIVISIONS / sizeof DIVISIONS[0]; i++) {
        const division *d = &DIVISIONS[i];
        mr_cores cores = {.n = d->n_seen, .n_cpus = 2 * d->n_seen, .n_all = 8, .n_all_cpus = 16};
        for (int32_t k = 0; k < d->n_seen; k++)
            cores.cpu_ids[k] = 10 + k;
        mr_rank_place place = {d->local_rank, d->n_local, d->local_rank, d->n_local};
        rank_share s;
        rank_place_divide(&place, &cores, d->usable, d->chosen, &s);
        if (s.n_cpus != d->n_cpus || s.n_cores != d->n_cores)
            fail_msg("case %zu: %d CPUs, %d cores", i, s.n_cpus, s.n_cores);
        for (int32_t k = 0; k < s.n_cpus; k++)
            assert_int_equal(s.cpu_ids[k], 10 + d->first + k);
    }
}

static void test_binding(void **state) {
    (void)state;
    assert_int_equal(in_child(check_undone, NULL), 0);
    assert_int_equal(in_child(check_chosen, "core"), 0);
    assert_int_equal(in_child(check_bound_to_none, NULL), 0);
    assert_int_equal(in_child(check_narrowed, NULL), 0);
    assert_int_equal(in_child(check_overlap, NULL), 0);
    assert_int_equal(in_child(check_take, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_even_shares),
        cmocka_unit_test(test_binding),
        cmocka_unit_test(test_divisions),
    };
    cpu_set_t every;
    memset(&every, 0xff, sizeof every);
    /* The test may have been started bound; a rank undoes its binding in the same way. */
    sched_setaffinity(0, sizeof every, &every);
    mr_cores_get(&cores_of_host);
    n_all = cores_of_host.n;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
