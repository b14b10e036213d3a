/* worker/files/file_server.h - gives blocks of the model file, and their hashes, to ranks that have none
 * (worker/files/file_client.h). It works when it is called: while the rank waits in the lobby, and between the tensors
 * of its own stage.
 * Owns:    the file's hashes, and a link with each peer. Buffers for answers are few, however many ask: 32 peers have
 *          two blocks each, and hand them on after some answers while others wait.
 * Borrows: the channel. Threads: that of the channel.
 * Errors:  of opening. A peer that is gone or sends what it should not is left out, and the log says so; a file that
 *          cannot be read any more is told to those who ask. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_SERVER_H
#define MR_WORKER_FILES_FILE_SERVER_H

#include "engine/base/status.h"
#include "proto/channel.h"

typedef struct mr_file_server_config {
    mr_channel *channel;
    const char *path;
    const char *cache_folder; /* for the hashes; NULL: they are not kept */
    uint64_t file_bytes;
    int32_t n_threads; /* that compute hashes */
    const uint32_t *peers;
    int32_t n_peers;
    const mr_err *problem; /* why there is no file to give: the answer to all that is asked; NULL: there is one */
} mr_file_server_config;

typedef struct mr_file_server mr_file_server;

MR_MUST_USE mr_status mr_file_server_create(const mr_file_server_config *config, mr_file_server **out, mr_err *err);
void mr_file_server_destroy(mr_file_server *s);

/* Answers what has been asked: once around without a budget, else for as long as there is something to answer, for
 * budget_ns at most. True: something was done. NULL is accepted. */
bool mr_file_server_serve(mr_file_server *s, int64_t budget_ns);

#endif
