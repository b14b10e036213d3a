/* coordinator/session/session_kv_cut.h - what becomes of KV blocks where the session's plan takes the place of
 * another one.
 * Threads: bound to the thread that runs the job. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_KV_CUT_H
#define MR_COORDINATOR_SESSION_SESSION_KV_CUT_H

#include "coordinator/session/session.h"

/* Whether each stage has the layers that it had in the former plan, all of them on the CPU or on one device, on the
 * same rank or on one that gets its blocks from a rank without a stage. from: [MR_MAX_STAGES], as in mr_epoch_kv.
 * *out_moves: some stage gets blocks. */
bool session_kv_keeps_cut(const mr_session *s, const mr_plan *former, int32_t *from, bool *out_moves);
/* The stage that moves, if it is the only one and its blocks can go along; else -1. former_blocks: of the former
 * plan. */
int32_t session_kv_only_move(const mr_session *s, const mr_plan *former, int32_t former_blocks);

#endif
