/* coordinator/session/session_recut.h - a better plan for a running job: learns how fast the ranks are, looks for a
 * faster plan (--recut), and suspects ranks whose steps take far longer than their plan says. Works only with
 * --recover and a plan that the planner has made from measured facts. The change itself is a recovery on purpose
 * (session_recover.h).
 * Owns:    mr_session_recovery.recut. Threads: bound to the thread that runs the job, but for mr_session_recut.
 * Errors:  init: MR_E_NO_MEMORY. A look that fails finds no better plan. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_RECUT_H
#define MR_COORDINATOR_SESSION_SESSION_RECUT_H

#include "coordinator/session/session.h"

/* MR_E_INVALID: --recut without --recover. */
MR_MUST_USE mr_status session_recut_check(const mr_session *s, mr_err *err);
MR_MUST_USE mr_status session_recut_init(mr_session *s, mr_err *err);
void session_recut_deinit(mr_session *s);

/* As mr_job_config.on_step_sums; ctx is the session. */
void session_recut_add(void *ctx, const Millrace__StepSums *sums);
/* While the session has its next plan and stages still report steps of the former one: they are not taken. */
void session_recut_pause(mr_session *s, bool is_paused);
/* Whether the plan is to be changed: there is a faster one, or a suspected rank has layers that others can take. */
bool session_recut_is_due(mr_session *s);
/* Takes over what session_recut_is_due has found. Returns whether there was anything. */
bool session_recut_take(mr_session *s);
/* No plan could be made without the suspected ranks, or no faster one: the present plan goes on. */
void session_recut_refuse(mr_session *s);
/* An epoch with the session's plan has begun. */
void session_recut_note_epoch(mr_session *s);
/* Before a plan is made: scales the facts that plans are made of (mr_session_facts.planner) by what was learned. */
void session_recut_learn(mr_session *s);
/* Whether a rank gets no layers because it is suspected. */
bool session_recut_leaves_out(const mr_session *s, int32_t rank);
bool session_recut_suspects(const mr_session *s, int32_t rank);
/* Where the other ranks are not enough: takes the suspected ranks again. Returns whether there was one. */
bool session_recut_forgive(mr_session *s);

/* Any thread, while the job runs: asks for a look at the next turn. If it finds a better plan, layers move, without
 * waiting until several looks agree. text says what the look before has found. MR_E_UNSUPPORTED: without --recut. */
MR_MUST_USE mr_status mr_session_recut(mr_session *s, char text[MR_ERR_TEXT_BYTES], mr_err *err);

#endif
