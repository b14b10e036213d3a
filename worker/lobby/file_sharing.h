/* worker/lobby/file_sharing.h - both sides of sharing the model file: a rank with some parts of it gives those to ranks
 * that ask, and asks other ranks for the parts that it lacks.
 * Owns:    server and client. Borrows: the config, which outlives it. Threads: bound to the step thread.
 * Errors:  an error becomes the problem: the stage of this rank reports it later, and the server answers every request
 *          with it. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_FILE_SHARING_H
#define MR_WORKER_LOBBY_FILE_SHARING_H

#include "proto/millrace.pb-c.h"
#include "worker/files/file_client.h"
#include "worker/files/file_server.h"
#include "worker/lobby/lobby.h"

/* {0}: nothing is shared. */
typedef struct mr_file_sharing {
    mr_file_server *server; /* NULL: nobody may ask */
    mr_file_client *client; /* NULL: this rank lacks nothing */
    mr_err problem;         /* why the server, the client or both could not be created; status MR_OK: no problem */
} mr_file_sharing;

/* Ends what was shared before. The message is read here only. */
void mr_file_sharing_begin(mr_file_sharing *f, const mr_lobby_config *config, const Millrace__ShareFile *message);
void mr_file_sharing_end(mr_file_sharing *f);

#endif
