/* coordinator/job/learned_times.h - how long steps take at the stages of a running job, learned from the stages'
 * reports. The scheduler predicts with these times. If the pipeline was measured before the start, the measured times
 * stand for the row counts that have not run yet. They are scaled by how much the learned times differ from the
 * measured ones.
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

/* Sets the times that were measured before the start; copied. measured has as many stages as t. */
void mr_learned_times_measured(mr_learned_times *t, const mr_pipeline_times *measured);

/* Takes the sums that a stage has reported. is_short: there are no more micro-batches than stages, so a step that comes
 * back has hardly waited behind another step. */
void mr_learned_times_add(mr_learned_times *t, const Millrace__StepSums *sums, bool is_short);

/* The usual step of a stage: of the class of row counts with the most reported steps, the mean rows and seconds. false:
 * the stage has reported no steps. */
typedef struct mr_learned_step {
    double rows, seconds;
} mr_learned_step;
bool mr_learned_times_usual(const mr_learned_times *t, int32_t stage, mr_learned_step *out);

/* The times of all stages; NULL: some stage is not known at all yet. The last stage's times include the output. Valid
 * until the next call. */
const mr_pipeline_times *mr_learned_times_get(mr_learned_times *t);

#endif
