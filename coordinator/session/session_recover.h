/* coordinator/session/session_recover.h - goes on when ranks are lost: a new plan over the ranks that live, and another
 * epoch of the job. The sequences go on; see mr_job_restart.
 * Owns:    nothing. Threads: bound to the thread that runs the job.
 * Errors:  texts name rank and host. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_RECOVER_H
#define MR_COORDINATOR_SESSION_SESSION_RECOVER_H

#include "coordinator/session/session.h"

MR_MUST_USE mr_status session_recovery_init(mr_session *s, mr_err *err);
void session_recovery_deinit(mr_session *s);

/* As mr_job_config.recover; ctx is the session. Losses that come while it works are met in the same call. A rank whose
 * stage fails gets no stage any more. After a malformed message, or one that a living rank does not take, the same
 * ranks begin again, within a limit (restart_limit.h). With MR_OK: grants the wishes of mr_session_drain, or warns that
 * the other ranks cannot hold all layers. */
MR_MUST_USE mr_status session_recover(void *ctx, mr_job *job, mr_status status, mr_err *err);
/* Writes the ranks that may get a stage to out[n_ranks], in order. Returns how many there are. */
int32_t session_recovery_ranks(const mr_session *s, int32_t *out);
/* As mr_job_config.wants_restart: whether there are such wishes. */
bool session_wants_restart(void *ctx);

/* Any thread, while the job runs: takes the layers of a rank away (drains), or lets it have layers again. The job does
 * so at its next turn. MR_E_INVALID: there is no such rank, it is lost, or no rank would be left. MR_E_UNSUPPORTED:
 * without --recover, or without ranks. */
MR_MUST_USE mr_status mr_session_drain(mr_session *s, int32_t rank, bool drains, mr_err *err);

#endif
