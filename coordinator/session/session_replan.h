/* coordinator/session/session_replan.h - other plans for a job that runs: after a loss, for a drain, and where another
 * plan may be faster.
 * Owns:    nothing. Threads: bound to the thread that runs the job.
 * Errors:  MR_E_NO_MEMORY: the layers do not fit the ranks, or this process has no memory. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_REPLAN_H
#define MR_COORDINATOR_SESSION_SESSION_REPLAN_H

#include "coordinator/session/session.h"

/* The fastest plan of the ranks living[n] by what was measured, with room for kv_tokens tokens at least, and the KV
 * blocks that fit it. */
MR_MUST_USE mr_status session_replan_solve(mr_session *s, const int32_t *living, int32_t n, int64_t kv_tokens,
                                           mr_plan *out, mr_err *err);
/* The same, with a preference for layers that the ranks hold, and without spares: the plan of a recovery. Without
 * measured facts, layers are balanced by their bytes. */
MR_MUST_USE mr_status session_replan_propose(mr_session *s, const int32_t *living, int32_t n, int64_t kv_tokens,
                                             mr_plan *out, mr_err *err);
/* Gives the session such a plan, with its sizes and KV blocks, but never fewer than least_blocks. Little memory makes
 * the KV cache smaller. After an error the session has its former plan. */
MR_MUST_USE mr_status session_replan(mr_session *s, const mr_job *job, const int32_t *living, int32_t n,
                                     int32_t least_blocks, mr_err *err);
/* KV blocks that hold so many tokens. */
int32_t session_replan_blocks_for(int64_t tokens);

#endif
