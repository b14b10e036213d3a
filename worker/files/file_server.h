/* worker/files/file_server.h - sends blocks of the model file, and the hashes of blocks, to ranks without the file
 * (worker/files/file_client.h). Of a model in parts, the server has the parts of its host. The server has no thread: a
 * rank calls mr_file_server_serve while it waits in the lobby, while it fetches parts itself, and between the tensors
 * that it loads.
 * Owns:    the hashes of the file, and a link with each peer. The memory for answers is bounded: at most 32 peers have
 *          send buffers, two blocks each. A peer gives its buffers up after 16 answers if other peers wait.
 * Borrows: the channel. Threads: that of the channel.
 * Errors:  of opening. A peer that sends a malformed request gets no more answers, and the log names the peer. A
 *          message of somebody without the launch secret is dropped, and the first one is logged. A peer that is lost
 *          is dropped. If the file cannot be read any more, the answer to a request is the error text. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_SERVER_H
#define MR_WORKER_FILES_FILE_SERVER_H

#include "engine/base/status.h"
#include "engine/gguf/part_files.h"
#include "proto/channel.h"

typedef struct mr_file_server_config {
    mr_channel *channel;
    const char *path;
    const mr_part_place *parts; /* [n_parts], read by create only */
    int32_t n_parts;
    const char *cache_folder; /* keeps the hashes; NULL: hashes are not kept */
    int32_t n_threads;        /* threads that compute hashes */
    const uint32_t *peers;    /* [n_peers]: ranks that may ask; read by create only */
    int32_t n_peers;
    const mr_err *problem; /* why this rank cannot serve the file: the answer to every request; NULL: no problem */
} mr_file_server_config;

typedef struct mr_file_server mr_file_server;

MR_MUST_USE mr_status mr_file_server_create(const mr_file_server_config *config, mr_file_server **out, mr_err *err);
void mr_file_server_destroy(mr_file_server *s);

/* Answers requests. budget_ns 0: one round over the peers. Otherwise rounds go on while requests are open, for
 * budget_ns at most. True: the server has taken a request or sent an answer. NULL is accepted. */
bool mr_file_server_serve(mr_file_server *s, int64_t budget_ns);

#endif
