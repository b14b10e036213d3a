/* worker/lobby/measure.h - how long the layers of a model take here: what the planner reckons with. The model's own
 * tensors are loaded by the code of a stage, so that layouts and graphs are those of a run.
 * Owns:    nothing; what it loads is gone when it returns. Borrows: everything in the config.
 * Threads: the backend's. It makes the calling thread flush denormals, as a stage does.
 * Errors:  those of loading, MR_E_NO_MEMORY also where the system would have to swap; MR_E_CANCELLED when it is told to
 *          stop. */
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
    const mr_devices *devices; /* used before the backend; NULL: none */
    mr_type kv_type;
    int32_t max_rows;   /* of one step */
    bool map_weights;   /* as in mr_stage_config */
    int32_t n_together; /* ranks of this host that measure at the same time, and share its memory; 0: one */
    int64_t kind_ns;    /* for the steps of a kind of layers; 0: a second and a half */
    /* Called again and again, between groups of nodes too; must not block. May be NULL. */
    void (*progress)(void *ctx);
    bool (*told_to_end)(void *ctx); /* between runs. May be NULL */
    void *ctx;
} mr_measure_config;

/* Some seconds at most, loading not counted. A curve has 1, 2, 4 ... rows, as far as the time went. */
MR_MUST_USE mr_status mr_measure_stage_times(const mr_measure_config *config, mr_measured *out, mr_err *err);
/* Some steps of one layer: where they do not take mr_measured.sample_s, nothing else of it holds. */
MR_MUST_USE mr_status mr_measure_sample(const mr_measure_config *config, double *out_seconds, mr_err *err);

#endif
