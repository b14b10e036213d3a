/* worker/stage/tail.h - what the last stage does after its layers: sample, and send ids, logits or hidden rows on.
 * Owns:    scratch, links to the coordinator and the head. Borrows: channel, sequences and stage.
 * Threads: bound to the step thread. Nothing is allocated after create.
 * Errors:  those of the links; a row whose logits are not numbers, or whose grammar allows nothing, ends its sequence
 *          (status in its token), not the stage. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_TAIL_H
#define MR_WORKER_STAGE_TAIL_H

#include "proto/link.h"
#include "worker/stage/sequences.h"
#include "worker/stage/stage.h"
#include "worker/stage/stage_clock.h"

typedef struct mr_tail_config {
    mr_channel *channel;
    int32_t coordinator;
    int32_t head; /* its endpoint; this endpoint itself when there is one stage */
    uint32_t epoch;
    int32_t n_slots; /* steps in flight */
    mr_msg_limits limits;
    uint32_t max_out_rows;
    uint32_t n_embd;                /* columns of hidden rows */
    mr_stage_clock *clock;          /* borrowed; may be NULL */
    bool (*told_to_end)(void *ctx); /* as in mr_worker_config; ends waiting with MR_E_CANCELLED. May be NULL */
    void *told_to_end_ctx;
} mr_tail_config;

typedef struct mr_tail mr_tail;
MR_MUST_USE mr_status mr_tail_create(const mr_tail_config *config, mr_tail **out, mr_err *err);
void mr_tail_destroy(mr_tail *t);

/* After mr_stage_run of the plan's step: samples, notes the ids (of a single stage), sends them, and logits where they
 * are wanted. Waits where the coordinator has not yet taken earlier logits. */
MR_MUST_USE mr_status mr_tail_finish_step(mr_tail *t, mr_stage *stage, mr_sequences *all,
                                          const Millrace__StepPlan *plan, mr_err *err);

#endif
