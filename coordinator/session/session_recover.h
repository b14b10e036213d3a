/* coordinator/session/session_recover.h - goes on when ranks are lost: a new plan over the ranks that live, and another
 * epoch of the job. The sequences go on; see mr_job_restart.
 * Owns:    nothing. Threads: bound to the thread that runs the job.
 * Errors:  texts name rank and host. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_RECOVER_H
#define MR_COORDINATOR_SESSION_SESSION_RECOVER_H

#include "coordinator/session/session.h"

/* As mr_job_config.recover; ctx is the session. Losses that come while it works are met in the same call. A rank whose
 * stage fails gets no stage any more. After a malformed message the same ranks begin again, some times. */
MR_MUST_USE mr_status session_recover(void *ctx, mr_job *job, mr_status status, mr_err *err);

#endif
