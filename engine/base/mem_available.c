/* engine/base/mem_available.c - how much memory the system could still give: MemAvailable of the kernel, within the
 * limits of control groups. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdio.h>

#include "engine/base/cgroup.h"
#include "engine/base/mem.h"

uint64_t mr_mem_available(void) {
    char line[128];
    uint64_t kib = 0, left = cgroup_memory_left(CGROUP_FILE, CGROUP_ROOT);
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    if (f)
        fclose(f);
    if (kib == 0)
        return left == UINT64_MAX ? 0 : left;
    return kib * 1024 < left ? kib * 1024 : left;
}
