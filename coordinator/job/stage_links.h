/* coordinator/job/stage_links.h - the coordinator's links to all stages: control out, reports, tokens and logits in.
 * Owns:    the links. Borrows: channel and plan.
 * Threads: bound to the coordinator thread. Sending allocates nothing.
 * Errors:  MR_E_PEER_LOST, MR_E_PROTOCOL name the stage; a stage's own failure comes with its status and text. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_STAGE_LINKS_H
#define MR_COORDINATOR_JOB_STAGE_LINKS_H

#include "coordinator/planning/plan.h"
#include "proto/link.h"
#include "proto/messages.h"

typedef struct mr_stage_links mr_stage_links;

typedef struct mr_stage_links_config {
    mr_channel *channel;
    const mr_plan *plan; /* the rank of a stage is its endpoint */
    uint32_t epoch;
    int32_t ring_slots;
    mr_msg_limits limits;
    size_t control_bytes; /* of a control message at most; 0: of the largest within the limits */
    uint32_t n_embd;      /* columns of hidden rows */
} mr_stage_links_config;

/* Reports and control. */
MR_MUST_USE mr_status mr_stage_links_create(const mr_stage_links_config *config, mr_stage_links **out, mr_err *err);
/* Tokens and logits of the last stage, before the plan is sent. Apart from create, so that the report of a stage that
 * has failed already is not lost with the links. */
MR_MUST_USE mr_status mr_stage_links_open_results(mr_stage_links *l, mr_err *err);
void mr_stage_links_destroy(mr_stage_links *l);

/* Whether a message can be sent to every stage now. */
MR_MUST_USE mr_status mr_stage_links_ready(mr_stage_links *l, bool *out_ready, mr_err *err);
/* Sends message to every stage; for_tail, if not NULL, is what the last stage gets instead. Only after ready said
 * true. */
MR_MUST_USE mr_status mr_stage_links_send(mr_stage_links *l, const Millrace__Control *message,
                                          const Millrace__Control *for_tail, mr_err *err);
/* Waits up to deadline_ns until every control message has been taken. */
void mr_stage_links_flush(mr_stage_links *l, int64_t deadline_ns);

/* The next report of any stage, NULL when there is none; valid until the next call. That a stage is gone is said after
 * the reports of all others. */
MR_MUST_USE mr_status mr_stage_links_next_report(mr_stage_links *l, Millrace__Report **out, mr_err *err);
/* Names the last stage in an error about what it sent; returns status. */
mr_status mr_stage_links_of_tail(const mr_stage_links *l, mr_status status, mr_err *err);
/* The next tokens message; NULL when there is none; valid until the next call. */
MR_MUST_USE mr_status mr_stage_links_next_tokens(mr_stage_links *l, Millrace__Tokens **out, mr_err *err);
/* The next message with rows of logits, or with hidden rows; NULL when there is none; stays until released. */
MR_MUST_USE mr_status mr_stage_links_peek_logits(mr_stage_links *l, mr_frame *out, const float **out_logits,
                                                 mr_err *err);
MR_MUST_USE mr_status mr_stage_links_release_logits(mr_stage_links *l, mr_err *err);

#endif
