// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "engine/base/cgroup.h"
#include "engine/base/thread.h"

int mr_thread_allowed_cpus(int *out_ids, int max) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        /* More CPUs than the set holds: all that are online. */
        int n = (int)sysconf(_SC_NPROCESSORS_ONLN);
        for (int i = 0; i < n && i < max; i++)
            out_ids[i] = i;
        return n > 0 ? n : 1;
    }
    int n = 0;
    for (int id = 0; id < CPU_SETSIZE; id++) {
        if (!CPU_ISSET(id, &set))
            continue;
        if (n < max)
            out_ids[n] = id;
        n++;
    }
    return n;
}

int mr_thread_usable_cores(void) {
    int n = mr_thread_allowed_cpus(NULL, 0);
    double quota = cgroup_cpu_quota(CGROUP_FILE, CGROUP_ROOT);
    int rounded = quota > 0 && quota < n ? (int)(quota + 0.5) : n;
    return rounded > 1 ? rounded : 1;
}

mr_status mr_thread_pin(int cpu_id, mr_err *err) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu_id >= 0 && cpu_id < CPU_SETSIZE)
        CPU_SET(cpu_id, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        return mr_err_set(err, MR_E_INVALID, "cannot bind a thread to cpu %d: error %d", cpu_id, errno);
    return MR_OK;
}
