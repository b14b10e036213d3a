/* coordinator/session/session_spares.h - ranks without a stage that hold layers of others (--spares).
 * Owns:    mr_session_recovery.ordered. Threads: bound to the thread that runs the job. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_SPARES_H
#define MR_COORDINATOR_SESSION_SESSION_SPARES_H

#include "coordinator/session/session.h"

/* How many ranks --spares asks for; 0 without ranks. */
int32_t session_spares_wanted(const mr_session *s);
/* MR_E_INVALID: --spares without --recover, or more spares than ranks can be without. */
MR_MUST_USE mr_status session_spares_check(const mr_session *s, mr_err *err);
/* Replaces the fastest plan of all ranks by one without the spares: the ranks to which the fastest plan gives the
 * fewest layers. */
MR_MUST_USE mr_status session_spares_solve(mr_session *s, mr_err *err);
/* Writes the ranks among living[n] that may get a stage to out, in order: `most` of them at most. Ranks with a stage
 * stay, then come those that hold most layers, then those with most memory. With a solved plan and without --spares,
 * all may get one. Returns how many there are. */
int32_t session_spares_leave_out(const mr_session *s, const int32_t *living, int32_t n, int32_t most, int32_t *out);
/* Free memory of a rank's host, by its latest word; UINT64_MAX: not known, which counts as most. */
uint64_t session_spares_memory_of(const mr_session *s, int32_t rank);
/* Whether a rank that has a stage in the session's plan has room for it beside all other layers that it holds, while
 * the stage still runs on rank `from`. */
bool session_spares_has_room(const mr_session *s, int32_t rank, int32_t from);
/* Whether a rank is a spare in the present plan: it lives, has no stage, and may get one. */
bool session_spares_is_one(const mr_session *s, int32_t rank);
/* Tells every spare which layers to hold: as many of the stages as its free memory has room for. */
void session_spares_prepare(mr_session *s);
/* Notes what spares have loaded. */
void session_spares_hear(mr_session *s);

#endif
