/* worker/lobby/prepare.h - loads the layers of stages that this rank may get later into its store of weights.
 * Owns:    nothing. Borrows: everything in the config.
 * Threads: bound to the step thread.
 * Errors:  MR_E_CANCELLED: must_stop has returned true; the store has the layers that were loaded by then. After other
 *          errors, too. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_PREPARE_H
#define MR_WORKER_LOBBY_PREPARE_H

#include "engine/gguf/model_info.h"
#include "engine/model/model.h"
#include "proto/limits.h"
#include "proto/millrace.pb-c.h"
#include "worker/stage/devices.h"

typedef struct mr_prepare_config {
    const mr_gguf *gguf;
    const mr_model_info *info;
    mr_backend *backend;
    const mr_devices *devices; /* as in mr_worker_config */
    mr_weight_store *store;
    bool (*must_stop)(void *ctx); /* called after each few MiB */
    void *ctx;
} mr_prepare_config;

typedef struct mr_prepare_stage {
    mr_layer_range range;
    mr_devices_share device;
} mr_prepare_stage;

/* A copy of a Prepare message, which lives only until the next message. */
typedef struct mr_prepare_wish {
    bool map_weights, fast_numerics;
    int32_t n;
    mr_prepare_stage stages[MR_MAX_STAGES];
} mr_prepare_wish;

void mr_prepare_read(const Millrace__Prepare *message, mr_prepare_wish *out);
/* Afterwards the store has these layers and no others. *out_loaded_bytes: of what it did not have. */
MR_MUST_USE mr_status mr_prepare_layers(const mr_prepare_config *config, const mr_prepare_wish *wish,
                                        uint64_t *out_loaded_bytes, mr_err *err);

#endif
