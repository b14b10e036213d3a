/* coordinator/lobby/roll_call_internal.h - internal to roll_call*.c: the lobby's links. */
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
    mr_arena *arena;
};

/* The next report of one rank, which has to be of the kind that is due; NULL while there is none. It lives in the
 * arena. */
MR_MUST_USE mr_status roll_call_take(mr_roll_call *r, int32_t rank, Millrace__Report__BodyCase due,
                                     Millrace__Report **out, mr_err *err);
MR_MUST_USE mr_status roll_call_send(mr_roll_call *r, int32_t rank, ProtobufCMessage *body, mr_err *err);
/* Asks a rank for its clock once. */
MR_MUST_USE mr_status roll_call_ping(mr_roll_call *r, int32_t rank, int64_t *out_offset_ns, int64_t *out_trip_ns,
                                     mr_err *err);

#endif
