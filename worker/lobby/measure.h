/* worker/lobby/measure.h - measures how long the layers of a model take on this rank. The planner predicts step times
 * from these times. Tensors of the model are loaded by the code of a stage, so that layouts and graphs are those of a
 * run.
 * Owns:    nothing; the loaded layers are freed before return. Borrows: everything in the config.
 * Threads: the step thread, which owns the backend. The calling thread flushes denormals from then on, as in a stage.
 * Errors:  those of loading; MR_E_NO_MEMORY, also if the layers would not fit the free memory; MR_E_CANCELLED when told
 *          to end. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_MEASURE_H
#define MR_WORKER_LOBBY_MEASURE_H

#include <stdbool.h>

#include "backends/backend.h"
#include "engine/gguf/model_info.h"
#include "proto/measured.h"
#include "worker/stage/devices.h"

typedef struct mr_measure_config {
    const mr_gguf *gguf;
    const mr_model_info *info;
    mr_backend *backend;
    const mr_devices
        *devices; /* those that the numerics allow (mr_devices_for), preferred to the backend; NULL: none */
    mr_type kv_type;
    int32_t max_rows;   /* rows of one step */
    bool map_weights;   /* as in mr_stage_config */
    int32_t n_together; /* ranks of this host that measure at the same time and share its memory; 0: one */
    int64_t kind_ns;    /* time budget for a kind of layers; 0: 1.5 s, or 2 s to measure again */
    /* Called between steps and between groups of nodes. Must not block. May be NULL. */
    void (*progress)(void *ctx);
    bool (*told_to_end)(void *ctx); /* called between steps and after each few MiB of a load. May be NULL */
    void *ctx;
} mr_measure_config;

/* Takes a few seconds, without loading; some more for each kind of layers if max_rows is above 512. A curve has points
 * at 1, 2, 4 ... rows, as many as the time budget allowed. */
MR_MUST_USE mr_status mr_measure_stage_times(const mr_measure_config *config, mr_measured *out, mr_err *err);
/* Takes a moment, for a rank that is measured while others run steps: mean times of layers on the CPU, of the kind of
 * the middle layer, for steps of a few rows. Means, as in a run: a rank that is stopped for a part of the time is slow
 * for its neighbours. All points have equally many steps. */
MR_MUST_USE mr_status mr_measure_again(const mr_measure_config *config, mr_step_times *out, mr_err *err);
/* Writes name and memory of the device that holds layers (mr_devices_holder). false: there is none. */
bool mr_measure_describe_device(const mr_measure_config *config, mr_measured_device *out);
/* The time of a step of one layer, for a comparison with mr_measured.sample_s: if the two differ, none of the measured
 * times is valid any more. */
MR_MUST_USE mr_status mr_measure_sample(const mr_measure_config *config, double *out_seconds, mr_err *err);

#endif
