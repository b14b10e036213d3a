/* worker/stage/step_sums.h - how long steps take at a stage, summed up by classes of row counts (StepSums in
 * proto/millrace.proto). The scheduler learns the times of the stages from these sums. On the head the sums also hold
 * the shortest round trip: from sending the activations of a step until its ids come back.
 * Owns:    nothing: plain data, initialised with {0}. Threads: bound to the step thread. Nothing is allocated. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_STEP_SUMS_H
#define MR_WORKER_STAGE_STEP_SUMS_H

#include <stdbool.h>

#include "proto/messages.h"

typedef struct mr_step_sums {
    uint32_t steps[MR_ROW_CLASSES];
    uint64_t rows[MR_ROW_CLASSES], ns[MR_ROW_CLASSES];
    bool seen[MR_ROW_CLASSES]; /* the first step of a class touches new memory and does not count */
    uint32_t round_rows;       /* rows of the step with the shortest round trip; 0: none yet */
    uint64_t round_ns;         /* time of the shortest round trip */
    bool has_steps, has_news;  /* steps were added since the last report; some of them count */
    int64_t reported_ns;       /* time of the last report */
    struct {
        uint64_t step;
        uint32_t rows;
        int64_t at_ns;
    } sent[MR_MAX_RING_SLOTS]; /* steps sent to the next stage, at step % MR_MAX_RING_SLOTS */
} mr_step_sums;

/* The class of a row count from 1 to 4096: the least c with n_rows <= 2^c. */
static inline int32_t mr_row_class(uint32_t n_rows) {
    int32_t c = 0;
    while ((uint32_t)1 << c < n_rows)
        c++;
    return c;
}

/* Adds a step that took ns. */
void mr_step_sums_add(mr_step_sums *s, uint32_t n_rows, int64_t ns);
/* On the head: the activations of a step were sent; the ids of a step have come back. */
void mr_step_sums_sent(mr_step_sums *s, uint64_t step, uint32_t n_rows, int64_t now_ns);
void mr_step_sums_came_back(mr_step_sums *s, uint64_t step, int64_t now_ns);

/* When the next report is due; MR_NEVER: no step was added since the last report. */
int64_t mr_step_sums_due_ns(const mr_step_sums *s);
/* Fills the message. Its arrays point into s. */
void mr_step_sums_fill(mr_step_sums *s, Millrace__StepSums *out);
/* Clears the sums after a report. */
void mr_step_sums_clear(mr_step_sums *s, int64_t now_ns);

#endif
