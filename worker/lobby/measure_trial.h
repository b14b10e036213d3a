/* worker/lobby/measure_trial.h - internal to measure*.c: a stage of some layers that is there to be timed.
 * Owns:    the stage and its rows. Threads: that of the measurement. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_MEASURE_TRIAL_H
#define MR_WORKER_LOBBY_MEASURE_TRIAL_H

#include "engine/sample/sampler.h"
#include "worker/lobby/measure.h"
#include "worker/stage/stage.h"

enum { MEASURE_DEEP_ROWS = 4 }; /* of a step with a context: each row is one sequence's */

typedef struct trial {
    const mr_measure_config *config;
    mr_stage *stage;
    int32_t n_layers, depth, shift;
    uint64_t bytes; /* that it has taken */
    float *x;       /* NULL where the stage embeds */
    /* Of a stage with the output matrix. */
    mr_sampler *sampler;
    mr_sampler_scratch *scratch;
    float *logits;
} trial;

/* Of the memory that is free, this rank's part; UINT64_MAX where that is not known. */
uint64_t trial_free_bytes(const mr_measure_config *c);
/* free_bytes: what it may take. */
MR_MUST_USE mr_status trial_init(trial *t, const mr_measure_config *c, mr_layer_range range, int32_t max_rows,
                                 uint64_t free_bytes, mr_err *err);
/* {0} is accepted. */
void trial_deinit(trial *t);

/* A step of n rows, each the first one of its sequence, of which the first n_out are sampled; or one of
 * MEASURE_DEEP_ROWS rows with their context. */
typedef struct trial_step {
    int32_t n_rows, n_out;
    bool deep;
} trial_step;
MR_MUST_USE mr_status trial_run(trial *t, const trial_step *step, double *out_seconds, mr_err *err);

#endif
