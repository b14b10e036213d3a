/* coordinator/session/session_facts.h - what a session knows of its ranks, and what follows from it: the fastest plan,
 * what a plan is expected to do, and what is better than it.
 * Owns:    what was measured or read. {0} may be deinitialised.
 * Threads: bound to the main thread.
 * Errors:  name the file, the option or the rank. Measuring that fails is a warning, and nothing is known then. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_FACTS_H
#define MR_COORDINATOR_SESSION_SESSION_FACTS_H

#include "coordinator/console/options.h"
#include "coordinator/lobby/facts.h"
#include "coordinator/planning/plan_predict.h"
#include "coordinator/planning/planner.h"
#include "coordinator/session/plan_file.h"

struct mr_session;

typedef struct mr_session_facts {
    plan_file plan_from;           /* --plan */
    plan_file read;                /* --facts */
    mr_facts measured;             /* of the ranks, or of the stages of this process */
    const mr_cluster_facts *known; /* NULL: nothing is */
    uint64_t model_digest;
    bool is_solved;                 /* the planner chose the plan, nobody else */
    mr_planner_config planner;      /* where something is known */
    mr_plan_prediction *prediction; /* of the plan; NULL: nothing is known */
} mr_session_facts;

/* Reads --plan and --facts. */
MR_MUST_USE mr_status mr_session_facts_open(struct mr_session *s, mr_err *err);
void mr_session_facts_deinit(mr_session_facts *f);
/* Ranks that a plan may use: those of --facts for `plan`, else those that were started; 1: none but this process. */
int32_t mr_session_facts_n_ranks(const struct mr_session *s);

/* Where nothing is known yet: has the ranks measured, or, once the plan and its threads are there, the stages of this
 * process. */
MR_MUST_USE mr_status mr_session_facts_measure_ranks(struct mr_session *s, mr_err *err);
MR_MUST_USE mr_status mr_session_facts_measure_here(struct mr_session *s, mr_err *err);

/* The best plan by what is known. */
MR_MUST_USE mr_status mr_session_facts_solve(struct mr_session *s, mr_plan *out, mr_err *err);
/* Predicts what the session's plan will do; notes and warnings say which ranks are left out, what a slow link costs,
 * and what would be faster. */
MR_MUST_USE mr_status mr_session_facts_predict(struct mr_session *s, mr_err *err);

/* What is known is of stages of this process. */
bool mr_session_facts_is_here(const struct mr_session *s);
/* The host of a stage's rank; NULL: a thread of this process. */
const char *mr_session_facts_host(const struct mr_session *s, int32_t stage);
/* Tokens per second that are expected; 0: not known. */
double mr_session_facts_decode_rate(const struct mr_session *s, int32_t n_sequences, int32_t depth);
double mr_session_facts_prefill_rate(const struct mr_session *s, int32_t n_tokens, int32_t depth);
/* Notes what a usual step took at each stage of a job that has run, beside what was expected of it. Nothing where there
 * was no forecast. */
void mr_session_facts_note_steps(const struct mr_session *s);

#endif
