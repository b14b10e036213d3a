/* coordinator/session/session_layers.h - which layers the ranks have in memory, so that the plan after a loss loads
 * few.
 * Owns:    mr_session_recovery.holds. Threads: bound to the thread that runs the job. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_LAYERS_H
#define MR_COORDINATOR_SESSION_SESSION_LAYERS_H

#include "coordinator/session/session.h"

MR_MUST_USE mr_status session_layers_init(mr_session *s, mr_err *err);
void session_layers_deinit(mr_session *s);
/* Replaces the best plan of the ranks living[n] by one that is nearly as fast and loads less (mr_plan_keep), with room
 * for kv_tokens tokens at least. */
MR_MUST_USE mr_status session_layers_keep(mr_session *s, const int32_t *living, int32_t n, int64_t kv_tokens,
                                          mr_plan *plan, mr_err *err);
/* Before the stages of the session's plan start: stages free what the plan does not give them, and ranks without a
 * stage free all layers. */
void session_layers_begin(mr_session *s);
/* A drain or its end has changed nothing in the session's plan: idle ranks free their layers, and spares load some. */
void session_layers_stay(mr_session *s);
/* All ranks have been told to free their layers (mr_roll_call_ask). */
void session_layers_forget(mr_session *s);
/* All stages of the plan are loaded. */
void session_layers_loaded(mr_session *s);
/* Which layers a rank holds, as far as known: [layers + 1], at the end the output. */
bool *session_layers_row(const mr_session *s, int32_t rank);
/* The stage of a rank; NULL: it has none. */
const mr_plan_stage *session_layers_stage(const mr_session *s, int32_t rank);
/* Layers of the present plan that nobody had to load. */
int32_t session_layers_n_kept(const mr_session *s, const mr_job *job);

#endif
