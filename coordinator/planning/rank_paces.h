/* coordinator/planning/rank_paces.h - how much slower or faster the ranks are than their facts say, learned from the
 * steps of a running job. The pace of a rank is its measured seconds over the seconds that the facts predict for the
 * same steps: 1 is as predicted, 2 takes twice as long. The facts stay as they were measured, so that paces of one
 * epoch do not multiply with those of the next one.
 * When:    for each report of a stage mr_rank_paces_add; when a rank without a stage was measured again
 *          mr_rank_paces_measured; before a plan mr_rank_paces_apply.
 * Owns:    its tables. Borrows: nothing after a call.
 * Threads: bound to one thread. The caller gives the time, so the result depends on the arguments alone.
 * Errors:  create: MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_RANK_PACES_H
#define MR_COORDINATOR_PLANNING_RANK_PACES_H

#include "coordinator/planning/cluster_facts.h"
#include "engine/base/status.h"

typedef struct mr_rank_paces mr_rank_paces;

/* Steps of one stage: how many, what they took, and what the facts predict for them. */
typedef struct mr_paced_steps {
    int64_t n;
    double seconds, predicted_s;
} mr_paced_steps;

MR_MUST_USE mr_status mr_rank_paces_create(int32_t n_ranks, mr_rank_paces **out, mr_err *err);
void mr_rank_paces_destroy(mr_rank_paces *p);

/* Takes steps of a rank. Later steps count more: the sums before them fade with a half-life of some seconds. */
void mr_rank_paces_add(mr_rank_paces *p, int32_t rank, const mr_paced_steps *steps, int64_t now_ns);
/* A rank that runs no steps has measured its layers: they take times times as long as its facts say. This is its pace,
 * or the usual one times as much if that is above 1. It fades like one of steps. */
void mr_rank_paces_measured(mr_rank_paces *p, int32_t rank, double times, int64_t now_ns);
/* Whether enough steps of the rank have come lately. */
bool mr_rank_paces_is_known(const mr_rank_paces *p, int32_t rank, int64_t now_ns);
/* The pace of a rank. A rank that runs no steps, and was not measured, is assumed to be as the usual rank is: the lower
 * median of the known paces. What was learned of it before fades within minutes. 1: nothing is known. */
double mr_rank_paces_get(const mr_rank_paces *p, int32_t rank, int64_t now_ns);
/* Writes the ranks of the facts, with all times multiplied by the paces, to out[n_ranks]. */
void mr_rank_paces_apply(const mr_rank_paces *p, const mr_cluster_facts *facts, int64_t now_ns, mr_rank_facts *out);

#endif
