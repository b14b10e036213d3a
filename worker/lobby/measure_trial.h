/* worker/lobby/measure_trial.h - internal to measure*.c: a stage of a few layers, loaded only to be timed.
 * Owns:    the stage and its rows. Threads: that of the measurement. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_MEASURE_TRIAL_H
#define MR_WORKER_LOBBY_MEASURE_TRIAL_H

#include "engine/sample/sampler.h"
#include "worker/lobby/measure.h"
#include "worker/stage/stage.h"

enum { MEASURE_DEEP_ROWS = 4 }; /* rows of a deep step: each row is a decode row of one sequence with a context */

typedef struct trial {
    const mr_measure_config *config;
    mr_stage *stage;
    int32_t n_layers, depth, shift; /* depth: context of a row in a deep step; shift: see N_SHIFTS */
    int32_t n_attended;             /* earlier positions that a row of a deep step attends to */
    uint64_t bytes;                 /* memory of the stage */
    float *x;                       /* input activations; NULL: the stage embeds */
    float *x_out;                   /* takes the rows from a device; NULL: they stay where they are */
    /* Only if the stage has the output matrix. */
    mr_sampler *sampler;
    mr_sampler_scratch *scratch;
} trial;

/* This rank's share of the free memory; UINT64_MAX: not known. */
uint64_t trial_free_bytes(const mr_measure_config *c);
typedef struct trial_desc {
    mr_layer_range range;
    int32_t max_rows;
    uint64_t free_bytes; /* of the host's memory */
    bool on_device;      /* the device that holds layers has them all (mr_devices_holder) */
    bool host_experts;   /* but their experts, or neurons of sparse parts, are in the host's memory */
} trial_desc;
/* Loads the layers of the range. MR_E_NO_MEMORY: the stage needs more than free_bytes, or more than the device has. */
MR_MUST_USE mr_status trial_init(trial *t, const mr_measure_config *c, const trial_desc *desc, mr_err *err);
/* {0} is accepted. */
void trial_deinit(trial *t);

/* A step of n_rows rows. Each row is the first row of its sequence, or in a deep step (MEASURE_DEEP_ROWS rows) the last
 * row of a context of `depth` positions. The first n_out rows are sampled. */
typedef struct trial_step {
    int32_t n_rows, n_out;
    bool deep;
} trial_step;
MR_MUST_USE mr_status trial_run(trial *t, const trial_step *step, double *out_seconds, mr_err *err);

#endif
