/* coordinator/planning/micro_batches.h - how fast a pipeline is, by the times of its stages and links, and in how many
 * micro-batches the decode rows should go through it. The one formula of the planner and the scheduler: with N
 * sequences in m micro-batches the time of one token for all is
 *   max(m * t_slow(N / m), sum of t_i(N / m) + sum of hops),
 * because a stage runs the m steps one after the other, and a sequence's next row waits for its id. While a step is
 * bound by reading weights, splitting gains nothing; once it is bound by arithmetic, it gains m times.
 * Owns:    nothing; who fills it in owns the arrays. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_MICRO_BATCHES_H
#define MR_COORDINATOR_PLANNING_MICRO_BATCHES_H

#include "coordinator/planning/step_times.h"

typedef struct mr_pipeline_times {
    int32_t n_stages;
    const mr_step_times *stages; /* [n_stages]: a step of so many rows, without what follows */
    mr_step_times output;        /* the last stage besides, for so many rows that want a token */
    double hops_s;               /* of one step from the first stage to the last, and of its ids back to the first */
    double hops_row_s;           /* and for each row of it: over all links */
    double link_row_s;           /* likewise, over the slowest link alone: links carry one step after the other */
} mr_pipeline_times;

/* Steps whose plans lie ready beside those that the stages run. */
enum { MR_MICRO_BATCHES_READY = 2 };
/* Micro-batches that a pipeline of so many stages has at most: two for each stage, and more for what stands between
 * few. */
int32_t mr_micro_batches_most(int32_t n_stages);
/* Seconds in which each of n sequences gets one token, in m micro-batches; n > 0, m >= 1. */
double mr_micro_batches_seconds(const mr_pipeline_times *t, int32_t n, int32_t m);
/* What numbers of micro-batches are compared by: these seconds, but more where rows come back only just in time. */
double mr_micro_batches_cost(const mr_pipeline_times *t, int32_t n, int32_t m);
/* The m of 1 to most (and to n) with the least cost; of those within a hundredth of it, the smallest. */
int32_t mr_micro_batches_best(const mr_pipeline_times *t, int32_t n, int32_t most);
/* Seconds until the first token of a prompt of n tokens that is alone, in chunks that fill consecutive steps. */
double mr_prefill_seconds(const mr_pipeline_times *t, int32_t n, int32_t chunk);

#endif
