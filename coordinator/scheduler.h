/* coordinator/scheduler.h - puts rows of live sequences into the next step.
 * Decode rows first, at most ceil(N / m) of the N decoding sequences, those that waited longest; then prefill rows up to the
 * step's row limit. A decode row may be issued before its id is known (lead), one token ahead at most and never past the
 * length limit.
 * Owns:    the step plan it fills, sized at create. Borrows: the ledger.
 * Threads: bound to the coordinator thread. Filling allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SCHEDULER_H
#define MR_COORDINATOR_SCHEDULER_H

#include "coordinator/journal.h"
#include "coordinator/ledger.h"
#include "proto/messages.h"

typedef struct mr_scheduler_config {
    int32_t n_stages;
    int32_t max_rows, max_out_rows, max_sequences;
} mr_scheduler_config;

typedef struct mr_scheduler mr_scheduler;
MR_MUST_USE mr_status mr_scheduler_create(const mr_scheduler_config *config, mr_ledger *ledger, mr_scheduler **out,
                                          mr_err *err);
void mr_scheduler_destroy(mr_scheduler *s);

/* Sequences join when they get a slot, and leave when they finish or are preempted. */
void mr_scheduler_join(mr_scheduler *s, mr_entry *e);
void mr_scheduler_leave(mr_scheduler *s, mr_entry *e);

/* The logits that a step will bring; entry is NULL when it brings none. */
typedef struct mr_logits_run {
    mr_entry *entry;
    int32_t first_position, n_rows;
} mr_logits_run;

/* Fills the plan of the next step, number step; NULL when no row can be issued now. Commits: the entries' n_issued moves
 * on and the ledger grows. The plan is valid until the next call. */
const Millrace__StepPlan *mr_scheduler_next(mr_scheduler *s, uint64_t step, mr_logits_run *out_logits);
/* Whether a row was left out of that step for want of a KV block. */
bool mr_scheduler_starved(const mr_scheduler *s);

#endif
