/* coordinator/job/step_budget.h - how many rows of prompts belong into a step, by the times of the stages.
 * While sequences decode, a step has no more rows than let their next tokens come in time. While none does, the rows of
 * prompts are cut so that the pipeline is done soonest: small chunks fill and drain it quickly, large ones cost less
 * each. Where the slowest stage does not stand at the end, chunks may be large at first and have to be small only at
 * last; where it does not stand at the front, the other way round.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_STEP_BUDGET_H
#define MR_COORDINATOR_JOB_STEP_BUDGET_H

#include <stdbool.h>

#include "coordinator/planning/micro_batches.h"

/* How rows that follow each other through the pipeline are cut. */
typedef struct mr_prefill_cut {
    int32_t least; /* rows of the smallest chunk */
    bool tapers;   /* chunks are larger where the slowest stage does not wait for it */
} mr_prefill_cut;

/* The cut of n rows into chunks of at most `most` that is done soonest. */
mr_prefill_cut mr_prefill_cut_best(const mr_pipeline_times *t, int64_t n, int32_t most);
/* Rows of the next chunk, 1 to most, with n_done rows before it and n_left > 0 still to come. */
int32_t mr_prefill_chunk(const mr_pipeline_times *t, mr_prefill_cut cut, int64_t n_done, int64_t n_left, int32_t most);
/* Seconds until n rows have passed the pipeline in these chunks. */
double mr_prefill_cut_seconds(const mr_pipeline_times *t, mr_prefill_cut cut, int64_t n, int32_t most);

/* Rows of each step, decode rows included, with which n_decoding sequences in m micro-batches get a token within
 * seconds: as many as each of them has at least, most at most. */
int32_t mr_step_rows_within(const mr_pipeline_times *t, int32_t n_decoding, int32_t m, double seconds, int32_t most);

#endif
