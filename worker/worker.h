/* worker/worker.h - the life of a stage: waits for the plan, loads its layers, runs steps until it is told to end.
 * The same loop runs as a thread on a local channel and as a rank on a network.
 * Owns:    everything that the stage loads and posts. Borrows: everything in the config, which outlives the call.
 * Threads: the thread that calls mr_worker_run is the step thread. During the call no other thread uses the channel or
 *          the backend.
 * Errors:  an error that stops the stage goes to the coordinator (a Failure message) and is returned. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_WORKER_H
#define MR_WORKER_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "backends/backend.h"
#include "engine/base/status.h"
#include "engine/model/weight_store.h"
#include "proto/channel.h"
#include "proto/weights_root.h"
#include "worker/files/file_client.h"
#include "worker/files/file_server.h"
#include "worker/stage/devices.h"
#include "worker/stage/kept_kv.h"

typedef struct mr_worker_config {
    const char *model_path;
    mr_channel *channel;
    int32_t coordinator; /* endpoint */
    uint32_t epoch;
    mr_backend *backend;
    const mr_devices *devices; /* preferred to the backend; NULL: none */
    /* Fetches the layers of the stage if this host does not have the model file; else NULL. */
    mr_file_client *file_client;
    mr_weight_store *store;      /* keeps the layers of the stage for later stages; NULL: they are freed */
    mr_kept_kv *kept_kv;         /* as in mr_stage_config; the plan says whether it is used. NULL: nothing is kept */
    mr_file_server *file_server; /* served while the stage loads and runs; NULL: this rank serves no file */
    const mr_weights_root *weights_root; /* of the model here, which a plan has to name; NULL: not known */
    bool must_verify;                    /* a plan that names no weights is refused */
    const mr_err *problem;               /* why this stage cannot start: reported at once; NULL: no problem is known */
    atomic_bool *runs_steps; /* true while the stage is loaded and runs or waits for steps; NULL: nobody asks */
    bool *is_unheard;        /* set if the stage has failed and no report could be sent; NULL: nobody asks */
    /* Called whenever the stage looks for messages. True ends the stage like a shutdown message. May be NULL. */
    bool (*told_to_end)(void *ctx);
    /* When told_to_end is to be called next at the latest; MR_NEVER: with the next message. May be NULL. */
    int64_t (*look_ns)(void *ctx);
    void *told_to_end_ctx; /* of both */
} mr_worker_config;

/* Runs the stage. Returns MR_OK after a shutdown message, or when told_to_end has returned true. */
MR_MUST_USE mr_status mr_worker_run(const mr_worker_config *config, mr_err *err);

#endif
