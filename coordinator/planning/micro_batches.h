/* coordinator/planning/micro_batches.h - how fast a pipeline is, by the times of its stages and links, and how many
 * micro-batches the decoding sequences should form. Planner and scheduler use the same formula: with N sequences in m
 * micro-batches the time of one token for all is
 *   max(m * t_slow(N / m), sum of t_i(N / m) + sum of hops),
 * because a stage runs the m steps one after the other, and a sequence's next row waits for the id of its last one.
 * While a step is bound by reading weights, splitting gains nothing. When a step is bound by arithmetic, splitting
 * gains a factor of up to m.
 * Owns:    nothing; the creator of a value owns the arrays. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_MICRO_BATCHES_H
#define MR_COORDINATOR_PLANNING_MICRO_BATCHES_H

#include "coordinator/planning/step_times.h"

typedef struct mr_pipeline_times {
    int32_t n_stages;
    const mr_step_times *stages; /* [n_stages]: seconds of a step, by its rows, without the fields below */
    mr_step_times output;        /* added at the last stage, by the rows that bring a token */
    double hops_s;               /* of one step: from the first stage to the last, and its ids back to the first */
    double hops_row_s;           /* added for each row: over all links */
    double link_row_s;           /* for each row, over the slowest link alone: a link carries one step at a time */
} mr_pipeline_times;

/* How many steps have their plans ready beside the steps that the stages run. */
enum { MR_MICRO_BATCHES_READY = 2 };
/* The most micro-batches of a pipeline of n_stages stages: two for each stage, and two more. A single stage has one. */
int32_t mr_micro_batches_most(int32_t n_stages);
/* Predicted seconds in which each of n sequences gets one token, in m micro-batches; n > 0, m >= 1. */
double mr_micro_batches_seconds(const mr_pipeline_times *t, int32_t n, int32_t m);
/* The measure for comparing numbers of micro-batches: like mr_micro_batches_seconds, but more if rows come back only
 * just in time for their next turn. */
double mr_micro_batches_cost(const mr_pipeline_times *t, int32_t n, int32_t m);
/* The number of micro-batches, 1 to most and to n, with the least cost. Of numbers within a hundredth of the least, the
 * smallest. */
int32_t mr_micro_batches_best(const mr_pipeline_times *t, int32_t n, int32_t most);
/* Seconds of the slowest stage or link for a step of `rows` rows of prompts that bring no token. */
double mr_pipeline_slowest_seconds(const mr_pipeline_times *t, double rows);
/* Predicted seconds until the first token of a prompt of n tokens without other sequences, in chunks of consecutive
 * steps. */
double mr_prefill_seconds(const mr_pipeline_times *t, int32_t n, int32_t chunk);

#endif
