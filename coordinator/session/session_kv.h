/* coordinator/session/session_kv.h - KV blocks outlive an epoch that ends on purpose: where the new plan has the same
 * cut, ranks keep the blocks of their stages, and a rank that gives its stage to another one sends the blocks there.
 * What cannot go on is computed again, which is always right.
 * Owns:    the bits in session_kv. Threads: bound to the thread that runs the job. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_KV_H
#define MR_COORDINATOR_SESSION_SESSION_KV_H

#include "coordinator/session/session.h"

typedef struct session_kv {
    bool is_kept; /* false: all is computed again */
    uint32_t epoch;
    mr_epoch_kv blocks;
    /* Bits of the blocks that go on, and of those that are sent now; owned. NULL: no stage moves. */
    uint8_t *kept, *sent;
    size_t n_bytes; /* of each */
} session_kv;

/* The session's plan is the next one, former the one that runs, with so many blocks. Waits until no step is under way,
 * for some seconds at most. MR_E_CANCELLED: the job was interrupted meanwhile. Call session_kv_deinit in any case. */
MR_MUST_USE mr_status session_kv_choose(mr_session *s, mr_job *job, const mr_plan *former, int32_t former_blocks,
                                        session_kv *out, mr_err *err);
void session_kv_deinit(session_kv *kv);
/* Whether a rank has, or sends, blocks that go on. */
bool session_kv_concerns(const mr_session *s, const session_kv *kv, int32_t rank);
/* Tells the ranks whose stages move to send their blocks. Call when the new stages were told to start. */
void session_kv_send(mr_session *s, const session_kv *kv);

#endif
