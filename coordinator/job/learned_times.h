/* coordinator/job/learned_times.h - how long steps take at the stages of a running job, from their reports: what the
 * scheduler reckons with. Where a pipeline was measured before the start, that holds for the row counts that have not
 * run yet, scaled by how much the others differ from it.
 * Owns:    its tables. Threads: bound to the coordinator thread. Nothing is allocated after create.
 * Errors:  create: MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_LEARNED_TIMES_H
#define MR_COORDINATOR_JOB_LEARNED_TIMES_H

#include <stdbool.h>

#include "coordinator/planning/micro_batches.h"
#include "engine/base/status.h"
#include "proto/messages.h"

typedef struct mr_learned_times mr_learned_times;

MR_MUST_USE mr_status mr_learned_times_create(int32_t n_stages, mr_learned_times **out, mr_err *err);
void mr_learned_times_destroy(mr_learned_times *t);

/* What was measured before the start, of as many stages; copied. */
void mr_learned_times_measured(mr_learned_times *t, const mr_pipeline_times *measured);

/* What a stage has reported. is_short: no more steps are under way than there are stages, so that a step that comes
 * back has hardly waited behind another one. */
void mr_learned_times_add(mr_learned_times *t, const Millrace__StepSums *sums, bool is_short);

/* The steps of which a stage has reported most: mean rows and seconds of those that took about as many rows, as they
 * ran. false: it has reported none. */
typedef struct mr_learned_step {
    double rows, seconds;
} mr_learned_step;
bool mr_learned_times_usual(const mr_learned_times *t, int32_t stage, mr_learned_step *out);

/* NULL while some stage is not known at all. The time of the output is part of the last stage's. Valid until the next
 * call. */
const mr_pipeline_times *mr_learned_times_get(mr_learned_times *t);

#endif
