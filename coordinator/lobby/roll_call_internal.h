/* coordinator/lobby/roll_call_internal.h - the lobby's links, shared by roll_call*.c and facts*.c. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_LOBBY_ROLL_CALL_INTERNAL_H
#define MR_COORDINATOR_LOBBY_ROLL_CALL_INTERNAL_H

#include "coordinator/lobby/roll_call.h"
#include "engine/base/arena.h"
#include "proto/link.h"

struct mr_roll_call {
    mr_channel *channel;
    int32_t n_ranks;
    mr_inbox **hello;    /* [n_ranks] */
    mr_outbox **control; /* [n_ranks] */
    mr_rank_info *infos; /* [n_ranks] */
    uint32_t *gone;      /* the first n_gone of [n_ranks]: ranks that are lost */
    int32_t n_gone;
    mr_arena *arena;
    int32_t n_parts;     /* of the model file */
    mr_rank_part *parts; /* [n_parts]: each as the first rank that has it says */
};

/* The next report of one rank, in the arena; NULL: none has come. Reports that nobody waits for are noted, and not
 * returned: RankState, Held, TookKv, MeasuredAgain.
 * MR_E_PROTOCOL: the report is of another kind than due. */
MR_MUST_USE mr_status roll_call_take(mr_roll_call *r, int32_t rank, Millrace__Report__BodyCase due,
                                     Millrace__Report **out, mr_err *err);
/* Notes what a rank holds. An answer to an earlier message is ignored. */
void roll_call_note_held(mr_roll_call *r, int32_t rank, const Millrace__Held *m);
/* Notes what a rank has measured again. An answer to an earlier message is ignored. */
void roll_call_note_measured(mr_roll_call *r, int32_t rank, const Millrace__MeasuredAgain *m);
/* Notes the parts that the hello of a rank names. */
MR_MUST_USE mr_status roll_call_note_parts(mr_roll_call *r, int32_t rank, const Millrace__Hello *h, mr_err *err);
/* Compares the parts that a rank has with those of the first ranks that have them. */
MR_MUST_USE mr_status roll_call_check_parts(const mr_roll_call *r, int32_t rank, mr_err *err);
/* Collects r->parts. MR_E_NOT_FOUND: no rank has one of them. */
MR_MUST_USE mr_status roll_call_join_parts(mr_roll_call *r, mr_err *err);
/* Sends a control message to a rank, which ends its load or its measurement. Waits for room in the link for some
 * seconds. */
MR_MUST_USE mr_status roll_call_send(mr_roll_call *r, int32_t rank, ProtobufCMessage *body, mr_err *err);
/* Asks a rank for its clock once: *out_offset_ns is how far it is ahead, *out_trip_ns the time of the round trip. */
MR_MUST_USE mr_status roll_call_ping(mr_roll_call *r, int32_t rank, int64_t *out_offset_ns, int64_t *out_trip_ns,
                                     mr_err *err);

#endif
