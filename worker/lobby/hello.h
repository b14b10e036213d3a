/* worker/lobby/hello.h - what a rank says of itself before there is a plan.
 * Owns:    the texts that the message points to. Threads: one thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_HELLO_H
#define MR_WORKER_LOBBY_HELLO_H

#include "engine/base/status.h"
#include "engine/gguf/gguf.h"
#include "proto/millrace.pb-c.h"

typedef struct mr_hello {
    Millrace__Hello message;
    char host[64];
    mr_err problem;
} mr_hello;

/* Looks at this process, its host and the model file. problem, unless NULL, is why it cannot take part; model_path may
 * be NULL then. Whatever fails becomes the status and text of the message, but for a file that is not there: it has no
 * bytes. */
void mr_hello_fill(mr_hello *h, const char *model_path, int32_t n_threads, const mr_err *problem);

/* A digest of the header and of some bytes of every tensor: model files that differ have different ones, short of files
 * made to deceive. */
uint64_t mr_hello_file_digest(const mr_gguf *g);

#endif
