/* backends/cpu/cpu_crowd.c - compares the time that threads waited for a core with the time of the runs. The longest
 * wait of a thread counts, not the mean: a group of tasks ends when the last thread ends. The machine becomes crowded
 * at a quarter of the time and free again at a tenth, so that it does not change all the time in between. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_crowd.h"

#include <stddef.h>

static const double ASK_NS = 20e6, /* least time of runs between two questions */
    ASK_THREAD_NS = 1e6,           /* the same for each thread: a question takes a thousandth of the time at most */
    LOOK_NS = 100e6,               /* least time of runs before a verdict */
    HALF_NS = 500e6,               /* the sums are halved when they hold so much time */
    CROWDED = 0.25, FREE = 0.1;    /* longest wait as a share of the time of runs */

void cpu_crowd_init(cpu_crowd *crowd, cpu_crowd_fn *waited_ns, void *ctx) {
    *crowd = (cpu_crowd){.waited_ns = waited_ns, .ctx = ctx};
}

static void change(cpu_crowd *crowd, bool is_crowded) {
    crowd->is_crowded = is_crowded;
    crowd->n_changes++;
    crowd->ns = crowd->wait_ns = 0;
}

static void judge(cpu_crowd *crowd) {
    double share = crowd->wait_ns / crowd->ns;
    if (!crowd->is_crowded && share >= CROWDED)
        change(crowd, true);
    else if (crowd->is_crowded && share <= FREE)
        change(crowd, false);
    else if (crowd->ns >= HALF_NS) {
        crowd->ns /= 2;
        crowd->wait_ns /= 2;
    }
}

void cpu_crowd_note(cpu_crowd *crowd, int32_t n_threads, bool is_trial, int64_t ns) {
    int32_t n = is_trial ? 0 : n_threads;
    if (!crowd->waited_ns)
        return;
    if (crowd->since_ns == 0)
        crowd->n_threads = n;
    else if (crowd->n_threads != n)
        crowd->n_threads = 0;
    crowd->since_ns += (double)ns;
    if (crowd->since_ns < ASK_NS || crowd->since_ns < ASK_THREAD_NS * n_threads)
        return;
    int64_t waited_ns = crowd->waited_ns(crowd->ctx, crowd->n_threads ? n_threads : INT32_MAX);
    if (waited_ns >= 0 && crowd->n_threads != 0) {
        crowd->ns += crowd->since_ns;
        crowd->wait_ns += (double)waited_ns;
        if (crowd->ns >= LOOK_NS)
            judge(crowd);
    }
    crowd->since_ns = 0;
}
