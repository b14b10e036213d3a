/* backends/cpu/cpu_choice.h - how many threads run a program: the number that has been fastest lately. More threads
 * help where groups have much work and the cores are free. Fewer are faster where groups are small, or where other
 * programs want the cores. Results do not depend on it (engine/NUMERICS.md).
 *
 *     cpu_choice_past_init(&past, most);
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

enum { CPU_CHOICE_LEVELS = 11 }; /* most threads, half of them, a quarter ... one; of 1024 at most */

/* The runs with one number of threads. Both sums are halved from time to time, so the mean is of the last second. */
typedef struct cpu_choice_runs {
    double ns, n;
} cpu_choice_runs;

/* Shared by the programs of one backend. */
typedef struct cpu_choice_past {
    int32_t most, n_levels;
    int32_t level;  /* of the program that ran last; 0: one thread, n_levels - 1: most */
    double run_ns;  /* of all runs */
    double lost_ns; /* by all trials: the time that they took longer than runs as before would have */
} cpu_choice_past;

typedef struct cpu_choice {
    int32_t level; /* in use */
    int32_t trial; /* the level on trial, or -1 */
    bool trial_up; /* the next trial is of the level above, if there is one */
    cpu_choice_runs runs[CPU_CHOICE_LEVELS], trial_runs;
    double run_ns, halved_ns, tried_ns; /* time of all runs; what it was when sums were halved, when a trial ended */
    double tried_mean, gap_ns;          /* of a run when that trial ended; run_ns between it and the next */
    cpu_choice_past *past;
} cpu_choice;

/* No program has run: the first one begins with most threads. */
void cpu_choice_past_init(cpu_choice_past *past, int32_t most);
/* Begins with the number of threads of the program that ran last. The past is borrowed until the choice ends. */
void cpu_choice_init(cpu_choice *c, cpu_choice_past *past);
/* Threads for the next run. */
int32_t cpu_choice_next(cpu_choice *c);
/* That run took so long. */
void cpu_choice_note(cpu_choice *c, int64_t ns);

#endif
