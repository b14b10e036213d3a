/* worker/worker.h - the life of a stage: wait for the plan, load its layers, run steps until it is told to end.
 * The same loop runs as a thread on a local channel and as a rank on a network.
 * Owns:    everything it loads and posts. Borrows: channel, backend and devices, which outlive the call.
 * Threads: mr_worker_run is the step thread: channel and backend are used by it alone while it runs.
 * Errors:  what stops a stage is reported to the coordinator (a Failure message) and returned. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_WORKER_H
#define MR_WORKER_WORKER_H

#include <stdbool.h>

#include "backends/backend.h"
#include "engine/base/status.h"
#include "proto/channel.h"
#include "worker/files/file_client.h"
#include "worker/files/file_server.h"
#include "worker/stage/devices.h"

typedef struct mr_worker_config {
    const char *model_path;
    mr_channel *channel;
    int32_t coordinator; /* its endpoint */
    uint32_t epoch;
    mr_backend *backend;
    const mr_devices *devices; /* used before the backend; NULL: none */
    /* On a host without model_path: what the stage needs of it comes by this; else NULL. */
    mr_file_client *file_client;
    mr_file_server *file_server; /* served until the first step comes; NULL: nobody asks this rank */
    const mr_err *problem;       /* why this stage cannot be; NULL: nothing is known against it */
    /* Asked whenever the stage looks for messages: true ends it as a shutdown message does. May be NULL. */
    bool (*told_to_end)(void *ctx);
    void *told_to_end_ctx;
} mr_worker_config;

/* Returns MR_OK after a shutdown message, or when it is told to end. */
MR_MUST_USE mr_status mr_worker_run(const mr_worker_config *config, mr_err *err);

#endif
