/* worker/lobby/hello.h - the first message of a rank: versions, cores, memory, what its CPU computes, and the model
 * file that it found.
 * Owns:    the texts that the message points to, except model_path. Threads: one thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_HELLO_H
#define MR_WORKER_LOBBY_HELLO_H

#include "engine/base/status.h"
#include "proto/device_link.h"
#include "proto/limits.h"
#include "proto/millrace.pb-c.h"
#include "worker/stage/devices.h"

typedef struct mr_hello {
    Millrace__Hello message;
    char host[64];
    Millrace__FilePart parts[MR_MAX_FILE_PARTS], *part_pointers[MR_MAX_FILE_PARTS];
    uint32_t digest_of[MR_MAX_DIGEST_PARTS];
    uint64_t digest_bits[MR_MAX_DIGEST_PARTS];
    uint64_t device_uuid[MR_DEVICE_UUID_WORDS];
    uint8_t part_roots[MR_MAX_FILE_PARTS * MR_FILE_HASH_BYTES];
    mr_err problem;
} mr_hello;

/* Fills the message, which takes some 10 ms the first time in a process. The message points into h and to model_path.
 * problem: why this rank cannot take part; NULL: no problem is known. model_path may be NULL if there is a problem. An
 * error becomes the status and text of the message. A missing part of the model file is not an error: its bytes are 0
 * then. Without any part, n_parts is 0. */
void mr_hello_fill(mr_hello *h, const char *model_path, int32_t n_threads, const mr_err *problem);
/* Adds the hashes of the parts of the file at model_path, which reads and hashes all their bytes unless the folder
 * cache_dir (as in mr_cache_dir_make) has the hashes already. Does nothing after an error or without parts. */
void mr_hello_add_roots(mr_hello *h, const char *model_path, const char *cache_dir, int32_t n_threads);
/* Adds what links from the device of this rank can do. devices may be NULL. */
void mr_hello_add_links(mr_hello *h, const mr_devices *devices, const mr_channel *channel);

#endif
