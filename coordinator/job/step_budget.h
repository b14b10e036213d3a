/* coordinator/job/step_budget.h - how many rows of prompts a step should have, by the times of the stages.
 * While sequences decode, a step has only as many rows as let the next tokens come in time. While no sequence decodes,
 * the rows of prompts are cut into chunks so that the pipeline finishes them soonest. Small chunks fill and drain the
 * pipeline quickly, and large chunks cost less per row. If the slowest stage is not the last one, chunks may be large
 * at first and need to be small only at the end. If the slowest stage is not the first one, chunks need to be small
 * only at first.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_STEP_BUDGET_H
#define MR_COORDINATOR_JOB_STEP_BUDGET_H

#include <stdbool.h>

#include "coordinator/planning/micro_batches.h"

/* How consecutive rows of prompts are cut into chunks. */
typedef struct mr_prefill_cut {
    int32_t least; /* rows of the smallest chunk */
    bool tapers;   /* chunks are larger where the slowest stage does not wait for them */
} mr_prefill_cut;

/* The cut of n rows into chunks of at most `most` rows that finishes soonest. */
mr_prefill_cut mr_prefill_cut_best(const mr_pipeline_times *t, int64_t n, int32_t most);
/* Rows of the next chunk, 1 to most, after n_done rows and with n_left > 0 rows to come. */
int32_t mr_prefill_chunk(const mr_pipeline_times *t, mr_prefill_cut cut, int64_t n_done, int64_t n_left, int32_t most);
/* Predicted seconds until n rows in these chunks have passed through the pipeline. */
double mr_prefill_cut_seconds(const mr_pipeline_times *t, mr_prefill_cut cut, int64_t n, int32_t most);

/* Rows of each step, decode rows included, with which n_decoding sequences in m micro-batches get their tokens within
 * `seconds`. The result is at least the decode rows of a micro-batch, and at most `most`. */
int32_t mr_step_rows_within(const mr_pipeline_times *t, int32_t n_decoding, int32_t m, double seconds, int32_t most);

#endif
