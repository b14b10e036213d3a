/* coordinator/planning/plan_predict.h - predictions for a plan by measured facts: seconds of each stage's steps, tokens
 * per second, and the cost of the slowest link.
 * Owns:    nothing; plain data, large (MR_MAX_STAGES curves). A prediction must not be copied, because times points
 *          into it.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_PLAN_PREDICT_H
#define MR_COORDINATOR_PLANNING_PLAN_PREDICT_H

#include "coordinator/planning/cluster_facts.h"
#include "coordinator/planning/micro_batches.h"
#include "coordinator/planning/plan.h"

typedef struct mr_plan_prediction {
    mr_pipeline_times times;
    mr_step_times stages[MR_MAX_STAGES];
} mr_plan_prediction;

/* The ranks of the plan are indices into the ranks of the facts. depth: positions before each row. */
void mr_plan_predict(const mr_cluster_facts *facts, const mr_plan *plan, int32_t depth, mr_plan_prediction *out);

/* Tokens per second of n sequences together, while all of them decode. out_micro_batches: the number used; may be
 * NULL. */
double mr_plan_decode_rate(const mr_plan_prediction *p, int32_t n, int32_t *out_micro_batches);
/* Tokens per second of a prompt of n tokens without other sequences, in chunks. */
double mr_plan_prefill_rate(const mr_plan_prediction *p, int32_t n, int32_t chunk);
/* Seconds of a step of a stage whose rows all bring a token. */
double mr_plan_step_seconds(const mr_plan_prediction *p, int32_t stage, double rows);

/* The link of a plan that is slowest for the steps of n sequences; false: there is none. */
typedef struct mr_plan_link {
    int32_t from, to; /* ranks */
    mr_link_facts facts;
    double cost; /* share of the decode rate of n sequences that this link costs: 0 to 1 */
} mr_plan_link;
bool mr_plan_slowest_link(const mr_cluster_facts *facts, const mr_plan *plan, const mr_plan_prediction *p, int32_t n,
                          mr_plan_link *out);

#endif
