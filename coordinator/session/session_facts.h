/* coordinator/session/session_facts.h - what a session knows of its ranks: times of layers, memory, links. From these
 * facts follow the fastest plan, predictions for a plan, and better alternatives.
 * Owns:    what was measured or read. {0} may be deinitialised.
 * Threads: bound to the main thread.
 * Errors:  texts name the file, the option or the rank. If measuring fails, there is a warning, and the session goes on
 *          without facts. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_FACTS_H
#define MR_COORDINATOR_SESSION_SESSION_FACTS_H

#include "coordinator/console/options.h"
#include "coordinator/lobby/facts.h"
#include "coordinator/planning/chunk_choice.h"
#include "coordinator/planning/plan_predict.h"
#include "coordinator/planning/planner.h"
#include "coordinator/planning/profile.h"
#include "coordinator/session/plan_file.h"

struct mr_session;

typedef struct mr_session_facts {
    plan_file plan_from;           /* --plan */
    plan_file read;                /* --facts */
    mr_facts measured;             /* of the ranks, or of the stages of this process */
    const mr_cluster_facts *known; /* points into plan_from, read or measured; NULL: nothing is known */
    mr_profile profile;            /* of the uses of experts; empty: none is known, or no device would hold experts */
    double *expert_shares;         /* by the profile; NULL: without one */
    uint64_t model_digest;
    bool is_solved;                 /* the planner chose the plan, not the options */
    mr_planner_config planner;      /* set if known is */
    mr_plan_prediction *prediction; /* of the plan; NULL: nothing is known */
    mr_chunk_choice chunk;          /* n 0: the chunk is the usual one, or --chunk */
    bool is_misfit;                 /* of `plan` by a file: the ranks have too little memory for the plan */
} mr_session_facts;

/* Reads the files of --plan and --facts. */
MR_MUST_USE mr_status mr_session_facts_open(struct mr_session *s, mr_err *err);
void mr_session_facts_deinit(mr_session_facts *f);
/* The number of ranks that a plan may use: for `plan` the ranks of --facts, else the started ranks; 1: this process
 * alone. */
int32_t mr_session_facts_n_ranks(const struct mr_session *s);
/* The number of stages where nothing else says it: one for each rank, or one for each device that this process alone
 * may put layers on. */
int32_t mr_session_facts_usual_stages(const struct mr_session *s);

/* If no facts are known yet: measures the ranks (before there is a plan), or the stages of this process (when plan and
 * threads are chosen). Does nothing if the options need no facts. */
MR_MUST_USE mr_status mr_session_facts_measure_ranks(struct mr_session *s, mr_err *err);
MR_MUST_USE mr_status mr_session_facts_measure_here(struct mr_session *s, mr_err *err);

/* The best plan by the known facts. */
MR_MUST_USE mr_status mr_session_facts_solve(struct mr_session *s, mr_plan *out, mr_err *err);
/* The best plan by other facts. If the ranks have too little memory, matrices may stay in the model file; then this
 * warns. */
MR_MUST_USE mr_status mr_session_facts_solve_with(const struct mr_session *s, const mr_planner_config *with,
                                                  mr_plan *out, mr_err *err);
/* The same without the warning: its text is in out_why, which is empty where the ranks have enough memory. */
MR_MUST_USE mr_status mr_session_facts_solve_anyway(const struct mr_session *s, const mr_planner_config *with,
                                                    mr_plan *out, mr_err *out_why, mr_err *err);
/* Predicts the session's plan. Notes and warnings name the ranks that are left out, the cost of a slow link, and faster
 * alternatives. */
MR_MUST_USE mr_status mr_session_facts_predict(struct mr_session *s, mr_err *err);

/* These notes and warnings, once the plan is predicted: for mr_session_facts_predict alone. */
MR_MUST_USE mr_status session_facts_note(const struct mr_session *s, mr_err *err);

/* Chooses the session's chunk by the prediction, within the memory of the ranks: of a model with experts, and unless
 * --chunk is given. Of other models the usual chunk is large enough. */
MR_MUST_USE mr_status mr_session_facts_choose_chunk(struct mr_session *s, mr_err *err);

/* Whether the known facts are of stages of this process. */
bool mr_session_facts_is_here(const struct mr_session *s);
/* The host of a stage's rank; NULL: the stage is a thread of this process. */
const char *mr_session_facts_host(const struct mr_session *s, int32_t stage);
/* Predicted tokens per second; 0: not known. depth: positions before a row. */
double mr_session_facts_decode_rate(const struct mr_session *s, int32_t n_sequences, int32_t depth);
double mr_session_facts_prefill_rate(const struct mr_session *s, int32_t n_tokens, int32_t depth);
/* Notes the measured and the predicted time of the usual step of each stage, after a job has run. Does nothing without
 * a prediction. */
void mr_session_facts_note_steps(const struct mr_session *s);

#endif
