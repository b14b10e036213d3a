/* worker/lobby/lobby.h - a rank outside of any plan. The rank sends a hello to the coordinator and waits for messages:
 * it measures, probes links and shares the model file on request, runs its stage (worker/worker.h) after a Start
 * message until the stage ends or an Abort message comes, waits again, and ends after a Shutdown message. A rank that
 * the plan leaves out never gets a Start message. The weights of a stage that has ended stay here for the next one; a
 * Prepare message says which layers a rank without a stage shall hold.
 * Owns:    its links, of epoch 0; weights in no stage. Borrows: everything in the config.
 * Threads: the thread that calls mr_lobby_run is the step thread.
 * Errors:  MR_E_PEER_LOST: the coordinator is gone; MR_E_PROTOCOL, MR_E_NO_MEMORY. A problem of this rank goes into its
 *          hello, and a failure of its stage goes to the coordinator: mr_lobby_run does not return them. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_LOBBY_H
#define MR_WORKER_LOBBY_LOBBY_H

#include <stdatomic.h>

#include "backends/backend.h"
#include "engine/base/status.h"
#include "engine/gguf/gguf.h"
#include "proto/channel.h"
#include "worker/stage/devices.h"

typedef struct mr_lobby_config {
    const char *model_path; /* NULL: problem says why */
    /* As in mr_cache_dir_make. Holds fetched blocks, hashes of a model file, and measured times. */
    const char *cache_dir;
    mr_channel *channel;
    int32_t coordinator;       /* endpoint */
    mr_backend *backend;       /* NULL: problem says why */
    const mr_devices *devices; /* as in mr_worker_config */
    int32_t n_threads;         /* threads of the backend */
    bool verifies_weights;     /* the hello has hashes of all bytes of the model file */
    atomic_bool *runs_steps;   /* as in mr_worker_config */
    const mr_err *problem;     /* why this rank cannot take part; NULL: no problem is known */
    /* Counted up by another thread, which then wakes the channel: how often a signal (SIGUSR1) has asked to drain this
     * rank, or to end its drain. The coordinator is told. NULL: there are no signals. */
    const atomic_uint *n_signals;
} mr_lobby_config;

/* Returns MR_OK after a shutdown message. *out_abandoned: a rank is lost, so the caller must not wait for other
 * ranks. */
MR_MUST_USE mr_status mr_lobby_run(const mr_lobby_config *config, bool *out_abandoned, mr_err *err);

/* Opens the model file of a rank that lacks some of its n parts, after its lobby has answered FetchHeaders: parts that
 * are here beside path, the others from the cache. digest: of the model (mr_gguf_digest). Data of tensors that were not
 * fetched reads as zeros. Any thread. */
MR_MUST_USE mr_status mr_lobby_open_file(const char *path, const char *cache_dir, const mr_part_place *places,
                                         int32_t n, uint64_t digest, mr_gguf **out, mr_err *err);

#endif
