/* backends/cpu/cpu_choice.h - chooses how many threads run a program: the number that has been fastest lately. More
 * threads help if groups have much work and the cores are free. Fewer threads are faster if groups are small, or if
 * other programs use the cores. The results do not depend on the number of threads (engine/NUMERICS.md).
 * Where the system says how long threads wait for a core, the choice tries sooner and judges later while the machine is
 * crowded (cpu_crowd.h).
 *
 *     cpu_choice_past_init(&past, most, NULL, NULL);
 *     cpu_choice_init(&c, &past);
 *     int32_t n = cpu_choice_next(&c);
 *     ... run the program on n threads, which takes ns ...
 *     cpu_choice_note(&c, ns);
 *
 * Threads: caller serialises. No clock is read here, nothing is allocated. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_CPU_CHOICE_H
#define MR_BACKENDS_CPU_CPU_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/cpu/cpu_crowd.h"

/* A level is a number of threads. The highest level is the most threads, the next lower one half of them, then a
 * quarter and so on, and level 0 is one thread. */
enum { CPU_CHOICE_LEVELS = 11 }; /* enough for 1024 threads */

/* The runs on one level: their time and number. Both sums are halved from time to time, so that the mean is that of the
 * last second, and of some more seconds while the machine is crowded. */
typedef struct cpu_choice_runs {
    double ns, n;
} cpu_choice_runs;

/* Shared by the programs of one backend. */
typedef struct cpu_choice_past {
    int32_t most, n_levels;
    int32_t level;  /* of the program that ran last */
    double run_ns;  /* time of all runs */
    double lost_ns; /* time that all trials took longer than the same runs on the old level would have taken */
    double crowded_run_ns, crowded_lost_ns; /* the same while the machine was crowded, which run_ns and lost_ns omit */
    cpu_crowd crowd;
} cpu_choice_past;

typedef struct cpu_choice {
    int32_t level; /* in use */
    int32_t trial; /* the level on trial, or -1 */
    bool trial_up; /* the next trial is of the level above, if there is one */
    cpu_choice_runs runs[CPU_CHOICE_LEVELS], trial_runs;
    /* run_ns: time of all runs. halved_ns: value of run_ns when the sums were last halved. tried_ns: value of run_ns
     * when the last trial ended; 0: no trial yet. */
    double run_ns, halved_ns, tried_ns;
    double tried_mean, gap_ns; /* mean time of a run when the last trial ended; run_ns between it and the next trial */
    uint32_t n_changes;        /* crowd.n_changes when the sums were last emptied */
    cpu_choice_past *past;
} cpu_choice;

/* Call this when the backend is created: no program has run, and the first one will begin with the most threads.
 * waited_ns, ctx: see cpu_crowd_init. */
void cpu_choice_past_init(cpu_choice_past *past, int32_t most, cpu_crowd_fn *waited_ns, void *ctx);
/* Begins with the number of threads of the program that ran last. The past is borrowed for the life of the choice. */
void cpu_choice_init(cpu_choice *c, cpu_choice_past *past);
/* Number of threads for the next run. */
int32_t cpu_choice_next(cpu_choice *c);
/* Notes the time of the run that cpu_choice_next was asked for. */
void cpu_choice_note(cpu_choice *c, int64_t ns);

#endif
