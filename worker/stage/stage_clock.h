/* worker/stage/stage_clock.h - the time that a stage spends in each phase (proto/phases.h), and, for a trace, a span
 * for each stay in a phase.
 * Owns:    the memory of the spans, allocated at start.
 * Threads: bound to the step thread. Nothing is allocated after start. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_STAGE_CLOCK_H
#define MR_WORKER_STAGE_STAGE_CLOCK_H

#include <stdbool.h>

#include "engine/base/status.h"
#include "proto/phases.h"

typedef struct mr_stage_clock {
    mr_phase phase;
    int64_t since_ns;           /* start of the present phase */
    int64_t ns[MR_PHASE_COUNT]; /* sums, without the present phase; those of a device may overlap with others */
    uint64_t step;              /* the step of new spans */
    uint32_t rows;              /* its rows */
    uint64_t n_steps, n_rows;
    mr_span *spans; /* NULL: no trace is wanted */
    int32_t n_spans;
    uint64_t n_dropped; /* spans that found the array full */
} mr_stage_clock;

/* Starts in the phase MR_PHASE_NO_WORK. mr_stage_clock_end accepts {0}. */
MR_MUST_USE mr_status mr_stage_clock_start(mr_stage_clock *c, bool wants_spans, mr_err *err);
void mr_stage_clock_end(mr_stage_clock *c);

/* Enters a phase. MR_PHASE_COUNT: none, because the thread waits for a device, whose times mr_stage_clock_add_step
 * adds. A clock of NULL is accepted. */
void mr_stage_clock_enter(mr_stage_clock *c, mr_phase phase);
/* Enters MR_PHASE_COMPUTE with a new step. */
void mr_stage_clock_begin_step(mr_stage_clock *c, uint64_t step, uint32_t rows);

/* Adds a step that a device has computed in ns until now_ns, while the thread was in other phases. */
void mr_stage_clock_add_step(mr_stage_clock *c, uint64_t step, uint32_t rows, int64_t ns, int64_t now_ns);

/* Adds a span to the trace that is no phase: of the present step. */
void mr_stage_clock_add_work(mr_stage_clock *c, mr_phase kind, int64_t start_ns, int64_t end_ns);

/* Moves up to max spans to out, the oldest first. Returns their number. */
int32_t mr_stage_clock_take(mr_stage_clock *c, mr_span *out, int32_t max);

#endif
