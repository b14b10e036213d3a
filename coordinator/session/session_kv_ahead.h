/* coordinator/session/session_kv_ahead.h - before a rank is drained to a spare, most of its KV blocks are copied while
 * steps run: whole blocks, to which no step writes any more. Then the plan changes, and only the blocks that are new
 * since then are sent in the pause (session_kv.h).
 * Owns:    its lists, in the session. Threads: bound to the thread that runs the job. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_KV_AHEAD_H
#define MR_COORDINATOR_SESSION_SESSION_KV_AHEAD_H

#include "coordinator/session/session.h"

/* The session's plan is the next one, former the one that runs, with so many blocks. true: one stage moves, and its
 * blocks are copied now. The session has its former plan again, until session_kv_ahead_is_due. false: nothing is to be
 * copied ahead, or it was before, or there is no room for it. */
bool session_kv_ahead_begin(mr_session *s, const mr_job *job, const mr_plan *former, int32_t former_blocks);
/* Once in a turn: goes on with the copy. true: it is over, and the plan is to change. */
bool session_kv_ahead_is_due(mr_session *s, const mr_job *job);
/* Whether it is over, and the plan has not changed since. */
bool session_kv_ahead_is_over(const mr_session *s);
/* The rank whose blocks are being copied; -1: none are. */
int32_t session_kv_ahead_from(const mr_session *s);
/* Clears the bits of blocks that the new rank of a stage has already. false: it has none. */
bool session_kv_ahead_subtract(const mr_session *s, const mr_job *job, int32_t stage, uint8_t *bits, int32_t *n);
/* Another epoch has begun. */
void session_kv_ahead_end(mr_session *s);
/* The present epoch goes on: tells the rank to send no more, and the spare to free what it has. */
void session_kv_ahead_give_up(mr_session *s);

#endif
