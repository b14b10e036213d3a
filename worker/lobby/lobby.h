/* worker/lobby/lobby.h - a rank outside of any plan: it says hello to the coordinator, waits to be told to take part,
 * runs its stage (worker/worker.h), and waits again until it is told to end. A rank that is not needed never takes
 * part.
 * Owns:    its links, of epoch 0. Borrows: everything in the config.
 * Threads: mr_lobby_run is the step thread.
 * Errors:  what keeps this rank from taking part goes into its hello, and a stage's failure to the coordinator: neither
 *          is an error here. MR_E_PEER_LOST: the coordinator is gone; MR_E_PROTOCOL, MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_LOBBY_H
#define MR_WORKER_LOBBY_LOBBY_H

#include "backends/backend.h"
#include "engine/base/status.h"
#include "proto/channel.h"
#include "worker/stage/devices.h"

typedef struct mr_lobby_config {
    const char *model_path; /* NULL: problem says why there is none */
    const char
        *cache_dir; /* mr_cache_dir_make's wish: for parts of a model file that is not here, and for hashes of one */
    mr_channel *channel;
    int32_t coordinator;       /* its endpoint */
    mr_backend *backend;       /* NULL likewise */
    const mr_devices *devices; /* mr_worker_config.devices */
    int32_t n_threads;         /* of the backend */
    const mr_err *problem;     /* why this rank cannot take part; NULL: nothing is known against it */
} mr_lobby_config;

/* Returns MR_OK after a shutdown message; *out_abandoned: a rank is lost, and nobody is to be waited for. */
MR_MUST_USE mr_status mr_lobby_run(const mr_lobby_config *config, bool *out_abandoned, mr_err *err);

#endif
