/* worker/files/file_client.h - fetches parts of the model file to a host that does not have the file. Sources are the
 * ranks that have the file (worker/files/file_server.h). Blocks go into the cache (worker/files/file_cache.h), whose
 * file is read like the original. With several sources, the hash of a block comes from one source and the block from
 * another source. In this way the client notices files that differ, and asks another source for a damaged block.
 * Owns:    the cache, and during a fetch a link with each source. Borrows: the channel.
 * Threads: that of the channel. fetch returns when all blocks are in the cache file; the disk may still be writing.
 * Errors:  of the last source, with the name of its rank: MR_E_PEER_LOST, MR_E_FORMAT (a block does not match its
 *          hash), MR_E_TIMEOUT, MR_E_PROTOCOL, MR_E_IO (the source cannot read the file); MR_E_CANCELLED (told to
 *          end); those of the cache. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_CLIENT_H
#define MR_WORKER_FILES_FILE_CLIENT_H

#include "engine/base/status.h"
#include "proto/channel.h"

enum { MR_FILE_MAX_SOURCES = 4 };

typedef struct mr_file_client_config {
    mr_channel *channel;
    const char *cache_folder; /* must exist */
    const char *model_path;   /* path of the file on the sources, for messages; outlives the client */
    uint64_t file_bytes, digest;
    int32_t n_parts;                                /* 1 to MR_MAX_FILE_PARTS */
    const uint64_t *part_bytes, *part_header_bytes; /* [n_parts] of the parts, in order; copied */
    int32_t sources[MR_FILE_MAX_SOURCES];           /* ranks */
    int32_t n_sources;
    int64_t patience_ns; /* timeout of a source with open requests; a warning comes after a tenth; 0: five minutes */
} mr_file_client_config;

typedef struct mr_file_range {
    uint64_t at, bytes; /* offset and length in the model file */
} mr_file_range;

typedef struct mr_file_client mr_file_client;

MR_MUST_USE mr_status mr_file_client_create(const mr_file_client_config *config, mr_file_client **out, mr_err *err);
void mr_file_client_destroy(mr_file_client *c);

/* The path of the cached file, which has holes where nothing was fetched. */
const char *mr_file_client_path(const mr_file_client *c);
/* The parts of the file: how many, their bytes, and of each the bytes in front of the tensors. */
int32_t mr_file_client_parts(const mr_file_client *c, const uint64_t **out_bytes, const uint64_t **out_header_bytes);
/* Bytes of all blocks received so far. */
uint64_t mr_file_client_moved_bytes(const mr_file_client *c);

typedef struct mr_file_wait {
    bool (*told_to_end)(void *ctx);                                     /* may be NULL */
    void (*progress)(void *ctx, size_t done_bytes, size_t total_bytes); /* of this fetch; may be NULL */
    void *ctx;                                                          /* argument of both functions */
} mr_file_wait;

/* Fetches the blocks of these ranges that the cached file does not have yet. */
MR_MUST_USE mr_status mr_file_client_fetch(mr_file_client *c, const mr_file_range *ranges, int32_t n,
                                           const mr_file_wait *wait, mr_err *err);
/* Waits until all fetched blocks are on the disk. An error says that the disk could not keep them. */
MR_MUST_USE mr_status mr_file_client_settle(mr_file_client *c, const mr_file_wait *wait, mr_err *err);

#endif
