/* worker/stage/tail.h - what the last stage does after its layers: samples, and sends ids, logits or hidden rows.
 * Owns:    scratch memory, links to the coordinator and the head. Borrows: channel, clock; for each call stage and
 *          sequences.
 * Threads: bound to the step thread. Nothing is allocated after create.
 * Errors:  those of the links. If the logits of a row are not numbers, or its grammar allows no token, the sequence
 *          fails (status in its token), not the stage. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_TAIL_H
#define MR_WORKER_STAGE_TAIL_H

#include "proto/link.h"
#include "worker/stage/sequences.h"
#include "worker/stage/stage.h"
#include "worker/stage/stage_clock.h"

typedef struct mr_tail_config {
    mr_channel *channel;
    int32_t coordinator; /* endpoint */
    int32_t head;        /* endpoint; with one stage the endpoint of this stage */
    uint32_t epoch;
    int32_t n_slots; /* send buffers for ids: the most steps in flight */
    mr_msg_limits limits;
    uint32_t max_out_rows;
    uint32_t n_embd;                /* columns of hidden rows */
    mr_stage_clock *clock;          /* borrowed; may be NULL */
    bool (*told_to_end)(void *ctx); /* as in mr_worker_config; true ends a wait with MR_E_CANCELLED. May be NULL */
    void *told_to_end_ctx;
} mr_tail_config;

typedef struct mr_tail mr_tail;
MR_MUST_USE mr_status mr_tail_create(const mr_tail_config *config, mr_tail **out, mr_err *err);
void mr_tail_destroy(mr_tail *t);

/* Call after the end of this step. Samples and sends the ids, and the logits or hidden rows that the plan wants.
 * Notes the ids in `all`. A sequence that has left its slot since the step was started gets no
 * token. Waits while the coordinator has not received earlier logits. */
MR_MUST_USE mr_status mr_tail_finish_step(mr_tail *t, const mr_stage *stage, mr_sequences *all,
                                          const Millrace__StepPlan *plan, mr_err *err);

#endif
