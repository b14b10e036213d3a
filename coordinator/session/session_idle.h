/* coordinator/session/session_idle.h - measures ranks without a stage again while the job runs: a busy host may have
 * made one slower at the start than it is, and no steps would ever show that.
 * One rank at a time measures a few layers on its CPU for two seconds. It computes for a quarter of this time, in short
 * pieces as a stage does, and on the cores that it would have as a stage: ranks of its host that compute on theirs
 * share no more than the memory with it. A rank measures for a tenth of the time at most. Ranks with layers on a device
 * in their facts do not measure: their pace is that of the device, too.
 * Owns:    next_ns. Threads: bound to the thread that runs the job.
 * Errors:  init: MR_E_NO_MEMORY. A rank that does not answer keeps its pace. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_IDLE_H
#define MR_COORDINATOR_SESSION_SESSION_IDLE_H

#include "coordinator/planning/rank_paces.h"
#include "coordinator/session/session.h"

typedef struct session_idle {
    int64_t *next_ns; /* [n_ranks]: no measurement before */
    int32_t rank;     /* that measures now; -1: none */
    int64_t asked_ns;
} session_idle;

MR_MUST_USE mr_status session_idle_init(session_idle *idle, int32_t n_ranks, mr_err *err);
/* {0} is accepted. */
void session_idle_deinit(session_idle *idle);
/* Asks one of ranks[n], which may get a stage and has none, where a measurement is due and sequences are live. */
void session_idle_ask(session_idle *idle, mr_session *s, const int32_t *ranks, int32_t n);
/* Once in a turn: takes the answer as the pace of the rank. */
void session_idle_hear(session_idle *idle, mr_session *s, mr_rank_paces *paces);

#endif
