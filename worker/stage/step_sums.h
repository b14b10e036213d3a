/* worker/stage/step_sums.h - how long steps take at a stage, summed up by classes of row counts (StepSums in
 * proto/millrace.proto): what the scheduler learns the times of the stages from. On the head also how soon the ids of a
 * step come back.
 * Owns:    nothing; plain data, zeros to begin with. Threads: bound to the step thread. Nothing is allocated. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_STEP_SUMS_H
#define MR_WORKER_STAGE_STEP_SUMS_H

#include <stdbool.h>

#include "proto/messages.h"

typedef struct mr_step_sums {
    uint32_t steps[MR_ROW_CLASSES];
    uint64_t rows[MR_ROW_CLASSES], ns[MR_ROW_CLASSES];
    bool seen[MR_ROW_CLASSES]; /* there was a step, which touched its memory for the first time and does not count */
    uint32_t round_rows;       /* 0: none yet */
    uint64_t round_ns;
    bool has_steps, has_news; /* any were added; any that count */
    int64_t reported_ns;      /* when they were taken last */
    struct {
        uint64_t step;
        uint32_t rows;
        int64_t at_ns;
    } sent[MR_MAX_RING_SLOTS]; /* steps that have gone on to the next stage, at step % MR_MAX_RING_SLOTS */
} mr_step_sums;

/* The class of so many rows, 1 to 4096: the least c with n_rows <= 2^c. */
static inline int32_t mr_row_class(uint32_t n_rows) {
    int32_t c = 0;
    while ((uint32_t)1 << c < n_rows)
        c++;
    return c;
}

/* A step has taken that long. */
void mr_step_sums_add(mr_step_sums *s, uint32_t n_rows, int64_t ns);
/* Its activations have gone on; its ids have come back. */
void mr_step_sums_sent(mr_step_sums *s, uint64_t step, uint32_t n_rows, int64_t now_ns);
void mr_step_sums_came_back(mr_step_sums *s, uint64_t step, int64_t now_ns);

/* When the last report will be long enough ago for another one; MR_NEVER: there was no step since. */
int64_t mr_step_sums_due_ns(const mr_step_sums *s);
/* Points out into s. */
void mr_step_sums_fill(mr_step_sums *s, Millrace__StepSums *out);
/* Begins anew, after they were reported. */
void mr_step_sums_clear(mr_step_sums *s, int64_t now_ns);

#endif
