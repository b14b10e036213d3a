/* worker/stage/stage_clock.h - where the time of a stage goes, always; and what it did when, if that is wanted.
 * Owns:    the memory of the spans, taken at start.
 * Threads: bound to the step thread. Nothing is allocated after start. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_STAGE_CLOCK_H
#define MR_WORKER_STAGE_STAGE_CLOCK_H

#include <stdbool.h>

#include "engine/base/status.h"
#include "proto/phases.h"

typedef struct mr_stage_clock {
    mr_phase phase;
    int64_t since_ns;
    int64_t ns[MR_PHASE_COUNT];
    uint64_t step; /* set by whoever begins one */
    uint32_t rows;
    uint64_t n_steps, n_rows;
    mr_span *spans; /* NULL: not wanted */
    int32_t n_spans;
    uint64_t n_dropped;
} mr_stage_clock;

/* Begins with no work. {0} may be ended. */
MR_MUST_USE mr_status mr_stage_clock_start(mr_stage_clock *c, bool wants_spans, mr_err *err);
void mr_stage_clock_end(mr_stage_clock *c);

/* From now on the stage does this. NULL is accepted. */
void mr_stage_clock_enter(mr_stage_clock *c, mr_phase phase);
void mr_stage_clock_begin_step(mr_stage_clock *c, uint64_t step, uint32_t rows);

/* Moves up to max spans, the oldest first, to out; returns how many. */
int32_t mr_stage_clock_take(mr_stage_clock *c, mr_span *out, int32_t max);

#endif
