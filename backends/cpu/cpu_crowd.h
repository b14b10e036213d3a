/* backends/cpu/cpu_crowd.h - whether other programs take the cores that our threads need. The system counts how long
 * each thread was ready to run and had no core. This time says what the times of runs do not: a run may be slow because
 * it has much to do, or because its threads wait.
 *
 * Threads: caller serialises. Nothing is allocated. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_CPU_CROWD_H
#define MR_BACKENDS_CPU_CPU_CROWD_H

#include <stdbool.h>
#include <stdint.h>

/* Returns how many nanoseconds the thread that waited longest among the first n_threads waited for a core since the
 * last call; -1: unknown. A call takes about a microsecond for each thread. */
typedef int64_t cpu_crowd_fn(void *ctx, int32_t n_threads);

typedef struct cpu_crowd {
    cpu_crowd_fn *waited_ns; /* NULL: nothing is known, and the machine counts as free */
    void *ctx;
    bool is_crowded;
    uint32_t n_changes; /* how often is_crowded has changed */
    int32_t n_threads;  /* of the runs since the last question; 0: the runs had different numbers */
    /* since_ns: time of runs since the last question. ns, wait_ns: time of runs and the longest wait in them, of the
     * last half second or so. */
    double since_ns, ns, wait_ns;
} cpu_crowd;

/* waited_ns may be NULL. ctx is borrowed. */
void cpu_crowd_init(cpu_crowd *crowd, cpu_crowd_fn *waited_ns, void *ctx);
/* Notes a run on n_threads threads that took ns. is_trial: other runs are on another number of threads, and this run
 * says nothing about them. */
void cpu_crowd_note(cpu_crowd *crowd, int32_t n_threads, bool is_trial, int64_t ns);

#endif
