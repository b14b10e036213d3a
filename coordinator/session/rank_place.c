/* coordinator/session/rank_place.c - reads the launchers' environment variables and divides a host's cores among its
 * ranks. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/rank_place.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads a number from 0 to max at *at and moves *at behind it; -1: there is none. */
static int32_t take_number(const char **at, long max) {
    char *end = NULL;
    if (**at < '0' || **at > '9')
        return -1;
    errno = 0;
    long v = strtol(*at, &end, 10);
    *at = end;
    return errno == 0 && v <= max ? (int32_t)v : -1;
}

/* The number in an environment variable; -1: the variable is missing, or is no such number. */
static int32_t number_of(const char *variable, long max) {
    const char *text = getenv(variable);
    int32_t v = text ? take_number(&text, max) : -1;
    return v >= 0 && !*text ? v : -1;
}

/* The entry of this node in Slurm's list of counts by node: "2(x3),4" means 2, 2, 2, 4. -1: there is no entry. If Slurm
 * does not name the node of this process, the first entry. */
static int32_t count_of_node(const char *variable, int32_t max) {
    const char *at = getenv(variable);
    int32_t node = number_of("SLURM_NODEID", INT32_MAX);
    for (int64_t left = node < 0 ? 0 : node; at;) {
        int32_t count = take_number(&at, max), times = 1;
        if (count >= 0 && strncmp(at, "(x", 2) == 0) {
            at += 2;
            times = take_number(&at, INT32_MAX);
            if (*at++ != ')')
                return -1;
        }
        if (count < 0 || times < 1 || (*at && *at != ','))
            return -1;
        if (left < times)
            return count;
        left -= times;
        at = *at ? at + 1 : NULL;
    }
    return -1;
}

/* The variables of one kind of launcher: for rank, size, local rank and local size. */
typedef struct launcher {
    const char *rank, *size, *local_rank, *local_size;
    bool lists_nodes; /* local_size has the counts of all nodes */
} launcher;

static const launcher LAUNCHERS[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", false},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false},
    {"PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", true},
};

mr_rank_place mr_rank_place_get(void) {
    for (size_t i = 0; i < sizeof LAUNCHERS / sizeof LAUNCHERS[0]; i++) {
        const launcher *l = &LAUNCHERS[i];
        int32_t size = number_of(l->size, INT32_MAX), rank = number_of(l->rank, INT32_MAX);
        if (rank < 0 || size < 1 || rank >= size)
            continue;
        int32_t n_local = l->lists_nodes ? count_of_node(l->local_size, size) : number_of(l->local_size, size);
        mr_rank_place p = {rank, size, number_of(l->local_rank, size - 1), n_local};
        if (p.n_local < 1 || p.local_rank < 0 || p.local_rank >= p.n_local)
            p.local_rank = 0, p.n_local = 1;
        return p;
    }
    return (mr_rank_place){0, 1, 0, 1};
}

/* Whether mpirun has bound this process by default. mpirun sets a policy variable only if a policy was given. */
static bool bound_by_default(void) {
    return getenv("OMPI_MCA_orte_bound_at_launch") && !getenv("OMPI_MCA_hwloc_base_binding_policy") &&
           !getenv("OMPI_MCA_hwloc_base_cpu_list");
}

/* Whether each rank was bound on purpose: by a policy of mpirun, or by another launcher (srun, as configured) that left
 * this process fewer CPUs than the host has. Under mpirun without a policy, or with policy "none", all ranks share the
 * CPUs. */
static bool binding_was_chosen(const mr_cores *cores) {
    const char *policy = getenv("OMPI_MCA_hwloc_base_binding_policy");
    if (policy)
        return strncmp(policy, "none", 4) != 0;
    if (getenv("OMPI_COMM_WORLD_RANK"))
        return getenv("OMPI_MCA_hwloc_base_cpu_list") != NULL;
    return cores->n_cpus < cores->n_all_cpus;
}

/* Lets the calling thread run on every CPU that the system allows this process. */
static void widen(void) {
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
}

void rank_place_divide(const mr_rank_place *place, const mr_cores *cores, int32_t usable, bool chosen,
                       rank_share *out) {
    int32_t n = cores->n, n_local = place->n_local, first = 0, last = n;
    *out = (rank_share){0};
    /* Bound ranks that have more cores in sum than the host must share cores. Which rank has which core is not
     * known. */
    bool overlap = chosen && (int64_t)n * n_local > cores->n_all;
    if (!chosen) {
        first = (int32_t)((int64_t)n * place->local_rank / n_local);
        last = (int32_t)((int64_t)n * (place->local_rank + 1) / n_local);
        usable /= n_local;
    } else if (overlap && cores->n_all / n_local < usable) {
        usable = cores->n_all / n_local;
    }
    if (!overlap && (chosen || n >= n_local))
        out->n_cpus = last - first;
    memcpy(out->cpu_ids, cores->cpu_ids + first, (size_t)out->n_cpus * sizeof out->cpu_ids[0]);
    out->n_cores = usable < 1 ? 1 : usable;
    if (out->n_cpus > 0 && out->n_cores > out->n_cpus)
        out->n_cores = out->n_cpus;
}

void rank_place_share(const mr_rank_place *place, rank_share *out) {
    mr_cores cores;
    if (bound_by_default())
        widen();
    mr_cores_get(&cores);
    rank_place_divide(place, &cores, mr_cores_usable(&cores), binding_was_chosen(&cores), out);
}

void rank_place_take_share(const rank_share *share) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int32_t i = 0; i < share->n_cpus; i++)
        if (share->cpu_ids[i] < CPU_SETSIZE)
            CPU_SET((size_t)share->cpu_ids[i], &set);
    if (share->n_cpus > 0)
        sched_setaffinity(0, sizeof set, &set);
}
