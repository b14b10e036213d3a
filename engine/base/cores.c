/* engine/base/cores.c - finds the cores that a thread may use with hwloc, and how many of them the CPU quota of control
 * groups leaves. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/cores.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/cgroup.h"
#include "engine/base/cores_internal.h"

void cores_of_topology(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, mr_cores *out) {
    memset(out, 0, sizeof *out);
    out->n_all_cpus = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    /* Some systems do not tell which CPUs share a core. Each CPU then counts as a core. */
    hwloc_obj_type_t type = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    hwloc_bitmap_t own = hwloc_bitmap_alloc();
    for (hwloc_obj_t core = NULL; own && (core = hwloc_get_next_obj_by_type(topology, type, core)) != NULL;) {
        out->n_all++;
        if (hwloc_bitmap_and(own, core->cpuset, allowed) != 0 || hwloc_bitmap_iszero(own))
            continue;
        out->n_cpus += hwloc_bitmap_weight(own);
        if (out->n == MR_CORES_MAX)
            continue;
        out->cpu_ids[out->n++] = hwloc_bitmap_first(own);
    }
    hwloc_bitmap_free(own);
}

/* The topology of this machine; NULL: hwloc finds none. It is kept, because hwloc loads plugins with each topology, and
 * libraries of GPUs and of X11 with them. */
static hwloc_topology_t machine;

static void load_machine(void) {
    if (hwloc_topology_init(&machine) == 0 && hwloc_topology_load(machine) == 0)
        return;
    if (machine)
        hwloc_topology_destroy(machine);
    machine = NULL;
}

static void read_machine(mr_cores *out) {
    static pthread_once_t first = PTHREAD_ONCE_INIT;
    (void)pthread_once(&first, load_machine);
    hwloc_bitmap_t allowed = machine ? hwloc_bitmap_alloc() : NULL;
    if (!allowed)
        return;
    if (hwloc_get_cpubind(machine, allowed, HWLOC_CPUBIND_THREAD) != 0)
        hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(machine));
    cores_of_topology(machine, allowed, out);
    hwloc_bitmap_free(allowed);
}

void mr_cores_get(mr_cores *out) {
    out->n = 0;
    read_machine(out);
    if (out->n > 0)
        return;
    /* Where hwloc finds no topology, every CPU counts as a core. */
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    out->n = n < 1 ? 1 : n < MR_CORES_MAX ? (int32_t)n : MR_CORES_MAX;
    out->n_cpus = out->n_all = out->n_all_cpus = out->n;
    for (int32_t i = 0; i < out->n; i++)
        out->cpu_ids[i] = i;
}

int32_t mr_cores_usable(const mr_cores *cores) {
    double quota = cgroup_cpu_quota(CGROUP_FILE, CGROUP_ROOT);
    int32_t n = quota > 0 && quota < cores->n ? (int32_t)(quota + 0.5) : cores->n;
    return n > 1 ? n : 1;
}
