/* worker/lobby/hello.h - the first message of a rank: versions, cores, memory, and the model file that it found.
 * Owns:    the texts that the message points to, except model_path. Threads: one thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_HELLO_H
#define MR_WORKER_LOBBY_HELLO_H

#include "engine/base/status.h"
#include "engine/gguf/gguf.h"
#include "proto/limits.h"
#include "proto/millrace.pb-c.h"

typedef struct mr_hello {
    Millrace__Hello message;
    char host[64];
    uint64_t part_bytes[MR_MAX_FILE_PARTS], part_header_bytes[MR_MAX_FILE_PARTS];
    mr_err problem;
} mr_hello;

/* Fills the message. The message points into h and to model_path. problem: why this rank cannot take part; NULL: no
 * problem is known. model_path may be NULL if there is a problem. An error becomes the status and text of the message.
 * A missing file is not an error: file_bytes is 0 then. */
void mr_hello_fill(mr_hello *h, const char *model_path, int32_t n_threads, const mr_err *problem);

/* A digest of the headers of all parts and of 64 bytes of every tensor. Different model files have different digests,
 * unless a file is made to deceive. */
uint64_t mr_hello_file_digest(const mr_gguf *g);

#endif
