/* coordinator/session/session_recovered.h - what --recover says of itself: how many recoveries there were, how long the
 * last one took, and what each rank is for now.
 * Owns:    nothing. Threads: bound to the thread that runs the job, where nothing else is said. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_RECOVERED_H
#define MR_COORDINATOR_SESSION_SESSION_RECOVERED_H

#include "coordinator/session/session.h"

/* Another plan runs, after a recovery that began at start_ns. */
void session_recovered_note(mr_session *s, int64_t start_ns);
/* Once in a turn: says when all sequences are where they were before the recovery. */
void session_recovered_note_again(mr_session *s);
/* How many ranks are lost. Those without a stage are lost without another plan, which /plan has to show. */
void session_recovered_note_lost(mr_session *s, int32_t n_lost);

/* Any thread, from mr_session_start to mr_session_close: what was done so far. */
void mr_session_get_recovered(mr_session *s, mr_session_recovered *out);
/* What a rank is for now: "stage", "spare", "suspect", "drained", "failed" or "lost". With --recover. */
const char *mr_session_rank_state(const mr_session *s, int32_t rank);

#endif
