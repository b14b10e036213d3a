/* coordinator/job/stage_links.h - the coordinator's links to all stages: control messages out; reports, tokens and
 * logits in.
 * Owns:    the links. Borrows: channel and plan.
 * Threads: bound to the coordinator thread. Sending allocates nothing.
 * Errors:  MR_E_PEER_LOST and MR_E_PROTOCOL name the stage in their text. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_STAGE_LINKS_H
#define MR_COORDINATOR_JOB_STAGE_LINKS_H

#include "coordinator/planning/plan.h"
#include "proto/link.h"
#include "proto/messages.h"

typedef struct mr_stage_links mr_stage_links;

typedef struct mr_stage_links_config {
    mr_channel *channel;
    const mr_plan *plan; /* a stage's rank is its endpoint on the channel */
    uint32_t epoch;
    int32_t ring_slots;
    mr_msg_limits limits;
    size_t control_bytes; /* largest control message; 0: by the limits */
    uint32_t n_embd;      /* columns of hidden rows */
} mr_stage_links_config;

/* Creates the links for control messages and reports. */
MR_MUST_USE mr_status mr_stage_links_create(const mr_stage_links_config *config, mr_stage_links **out, mr_err *err);
/* Opens the links for tokens and logits of the last stage. Call before the plan is sent. Not part of create: if opening
 * fails because a stage has failed, the links for reports exist, and bring the stage's own error. */
MR_MUST_USE mr_status mr_stage_links_open_results(mr_stage_links *l, mr_err *err);
void mr_stage_links_destroy(mr_stage_links *l);

/* Whether there is room to send a message to every stage now. */
MR_MUST_USE mr_status mr_stage_links_ready(mr_stage_links *l, bool *out_ready, mr_err *err);
/* Sends message to every stage. If for_tail is not NULL, the last stage gets for_tail instead. Call only after
 * mr_stage_links_ready returned true. */
MR_MUST_USE mr_status mr_stage_links_send(mr_stage_links *l, const Millrace__Control *message,
                                          const Millrace__Control *for_tail, mr_err *err);
/* Waits until every stage has received all control messages, up to deadline_ns. */
void mr_stage_links_flush(mr_stage_links *l, int64_t deadline_ns);

/* The next report of any stage; NULL: there is none. Valid until the next call. If a stage is lost, MR_E_PEER_LOST
 * comes after the pending reports of all other stages. */
MR_MUST_USE mr_status mr_stage_links_next_report(mr_stage_links *l, Millrace__Report **out, mr_err *err);
/* Names the last stage in err, unless status is MR_OK. Returns status. */
mr_status mr_stage_links_of_tail(const mr_stage_links *l, mr_status status, mr_err *err);
/* The next tokens message; NULL: there is none. Valid until the next call. */
MR_MUST_USE mr_status mr_stage_links_next_tokens(mr_stage_links *l, Millrace__Tokens **out, mr_err *err);
/* The next message with rows of logits or hidden rows; NULL: there is none. Valid until
 * mr_stage_links_release_logits. */
MR_MUST_USE mr_status mr_stage_links_peek_logits(mr_stage_links *l, mr_frame *out, const float **out_logits,
                                                 mr_err *err);
MR_MUST_USE mr_status mr_stage_links_release_logits(mr_stage_links *l, mr_err *err);

#endif
