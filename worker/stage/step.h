/* worker/stage/step.h - from a step plan to the rows that a stage runs.
 * Threads: bound to the step thread. Nothing is allocated.
 * Errors:  MR_E_PROTOCOL: the step plan contradicts earlier messages of the coordinator. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_STEP_H
#define MR_WORKER_STAGE_STEP_H

#include "proto/messages.h"
#include "worker/stage/sequences.h"
#include "worker/stage/stage.h"

/* Whether all ids that the head needs for this step have come back from the tail. A run without ids takes the last
 * sampled id of its slot, and starts at the position of this id. */
MR_MUST_USE mr_status mr_step_ids_ready(mr_sequences *all, const Millrace__StepPlan *plan, bool *out_ready,
                                        mr_err *err);

/* Fills the rows of the stage, writes new block table entries, copies KV blocks. max_out_rows: limit of the plan in
 * force. */
MR_MUST_USE mr_status mr_step_fill(mr_stage *stage, mr_sequences *all, const Millrace__StepPlan *plan,
                                   uint32_t max_out_rows, mr_err *err);

#endif
