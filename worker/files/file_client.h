/* worker/files/file_client.h - the model file on a host that has none: what is needed of it comes from ranks that have
 * it (worker/files/file_server.h), block by block, and lies in the cache (worker/files/file_cache.h), whose file is
 * read like the original. Hashes come from one rank, and where there are several with the file, blocks from another
 * one: so two files that differ are found, and a block that was damaged is asked for again elsewhere.
 * Owns:    the cache, and while it fetches a link with each source. Borrows: the channel.
 * Threads: that of the channel. fetch returns when all is here; the disk may still be writing it.
 * Errors:  of the last source, and name its rank: MR_E_PEER_LOST, MR_E_FORMAT (a block is not what its hash says),
 *          MR_E_TIMEOUT, MR_E_PROTOCOL, MR_E_CANCELLED (told to end); those of the cache. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_CLIENT_H
#define MR_WORKER_FILES_FILE_CLIENT_H

#include "engine/base/status.h"
#include "proto/channel.h"

enum { MR_FILE_MAX_SOURCES = 4 };

typedef struct mr_file_client_config {
    mr_channel *channel;
    const char *cache_folder; /* exists */
    const char *model_path;   /* the name that the sources have for the file, for messages; outlives the client */
    uint64_t file_bytes, header_bytes, digest;
    int32_t sources[MR_FILE_MAX_SOURCES]; /* ranks */
    int32_t n_sources;
    int64_t patience_ns; /* a source that leaves requests without an answer for so long is given up, and named in a
                          * warning after a tenth of that; 0: five minutes */
} mr_file_client_config;

typedef struct mr_file_range {
    uint64_t at, bytes;
} mr_file_range;

typedef struct mr_file_client mr_file_client;

MR_MUST_USE mr_status mr_file_client_create(const mr_file_client_config *config, mr_file_client **out, mr_err *err);
void mr_file_client_destroy(mr_file_client *c);

/* Of the cached file, which has holes where nothing was fetched. */
const char *mr_file_client_path(const mr_file_client *c);
/* Everything in front of the tensors. */
mr_file_range mr_file_client_header(const mr_file_client *c);
/* Bytes that came from other ranks so far. */
uint64_t mr_file_client_moved_bytes(const mr_file_client *c);

typedef struct mr_file_wait {
    bool (*told_to_end)(void *ctx);                                     /* may be NULL */
    void (*progress)(void *ctx, size_t done_bytes, size_t total_bytes); /* of the fetch; may be NULL */
    void *ctx;                                                          /* of both */
} mr_file_wait;

/* Brings these ranges into the cached file, as far as they are not there. */
MR_MUST_USE mr_status mr_file_client_fetch(mr_file_client *c, const mr_file_range *ranges, int32_t n,
                                           const mr_file_wait *wait, mr_err *err);
/* Waits until what was fetched is on the disk. Before that, what is read of the file may turn out not to be kept. */
MR_MUST_USE mr_status mr_file_client_settle(mr_file_client *c, const mr_file_wait *wait, mr_err *err);

#endif
