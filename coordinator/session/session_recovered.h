/* coordinator/session/session_recovered.h - what --recover says of itself: how many recoveries there were, how long the
 * last one took, and what each rank is for now.
 * Owns:    nothing. Threads: bound to the thread that runs the job, where nothing else is said. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_RECOVERED_H
#define MR_COORDINATOR_SESSION_SESSION_RECOVERED_H

#include "coordinator/session/session.h"

/* What a rank is for now. */
typedef enum mr_rank_state {
    MR_RANK_STAGE,   /* it runs a stage of the plan */
    MR_RANK_SPARE,   /* it has no stage, and may get one */
    MR_RANK_SUSPECT, /* its steps take far longer than predicted; with or without a stage */
    MR_RANK_DRAINED, /* somebody asked that it have no stage */
    MR_RANK_FAILED,  /* its stage has failed, so it gets none */
    MR_RANK_LOST,
    MR_RANK_STATES, /* how many there are */
} mr_rank_state;

/* Another plan runs, after a recovery that began at start_ns. */
void session_recovered_note(mr_session *s, int64_t start_ns);
/* Once in a turn: says when all sequences are where they were before the recovery. */
void session_recovered_note_again(mr_session *s);
/* How many ranks are lost. Those without a stage are lost without another plan, which /plan has to show. */
void session_recovered_note_lost(mr_session *s, int32_t n_lost);

/* Any thread, from mr_session_start to mr_session_close: what was done so far. */
void mr_session_get_recovered(mr_session *s, mr_session_recovered *out);
/* "stage", "spare", "suspect", "drained", "failed", "lost": the words of /plan and of the metrics. */
const char *mr_rank_state_name(mr_rank_state state);
/* Once there is a plan. While the job waits for memory, no rank has a stage. */
mr_rank_state mr_session_rank_state(const mr_session *s, int32_t rank);
/* How many ranks are in each state. Where stages are threads, this process counts as one rank. */
void mr_session_count_ranks(const mr_session *s, int32_t out[MR_RANK_STATES]);

#endif
