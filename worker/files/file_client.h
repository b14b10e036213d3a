/* worker/files/file_client.h - fetches what a host lacks of the model file. The sources of a part are ranks that have
 * it (worker/files/file_server.h). Parts are fetched one after the other, so that few sources send at a time. Blocks go
 * into the cache (worker/files/file_cache.h), whose file is read like the original. With several sources, the hash of a
 * block comes from one source and the block from another source. In this way the client notices files that differ, and
 * asks another source for a damaged block. Of a part whose root is known, no byte is taken that is not of that root.
 * Owns:    the cache, and during a fetch a link with each source. Borrows: the channel, the server.
 * Threads: that of the channel. fetch returns when all blocks are in the cache file; the disk may still be writing.
 * Errors:  of the last source, with the name of its rank: MR_E_PEER_LOST, MR_E_FORMAT (a block does not match its
 *          hash), MR_E_TIMEOUT, MR_E_PROTOCOL, MR_E_IO (the source cannot read the file); MR_E_CANCELLED (told to
 *          end); those of the cache. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_CLIENT_H
#define MR_WORKER_FILES_FILE_CLIENT_H

#include "engine/base/status.h"
#include "proto/channel.h"
#include "proto/limits.h"
#include "worker/files/file_blocks.h"
#include "worker/files/file_server.h"

typedef struct mr_file_part {
    uint64_t bytes, header_bytes;         /* header_bytes: in front of the tensors */
    int32_t sources[MR_MAX_PART_SOURCES]; /* ranks */
    int32_t n_sources;                    /* 0: the part is on this host */
    mr_file_hash root;                    /* of its bytes (mr_file_root_of); all zero: not known */
    uint64_t first_block, end_block;      /* set by the client, like the next one */
    bool is_proven;                       /* the hashes of all blocks are known, and make the root */
} mr_file_part;

typedef struct mr_file_client_config {
    mr_channel *channel;
    const char *cache_folder; /* must exist */
    const char *model_path;   /* of the parts on this host, and of the file on the sources; outlives the client */
    uint64_t digest;
    const mr_file_part *parts; /* [n_parts], in order; copied */
    int32_t n_parts;           /* 1 to MR_MAX_FILE_PARTS */
    mr_file_server *server;    /* serves others while this client waits; may be NULL */
    /* Timeout of a source with open requests; 0: five minutes. A warning comes after a tenth of it, and where another
     * source is left, the timeout, too. */
    int64_t patience_ns;
} mr_file_client_config;

typedef struct mr_file_range {
    uint64_t at, bytes; /* offset and length in the model file */
} mr_file_range;

typedef struct mr_file_client mr_file_client;

MR_MUST_USE mr_status mr_file_client_create(const mr_file_client_config *config, mr_file_client **out, mr_err *err);
void mr_file_client_destroy(mr_file_client *c);

/* The path of the cached file, which has holes where nothing was fetched, and in place of parts on this host. */
const char *mr_file_client_path(const mr_file_client *c);
/* The config, with a copy of the parts. */
const mr_file_client_config *mr_file_client_get_config(const mr_file_client *c);
/* Bytes of all blocks received so far. */
uint64_t mr_file_client_moved_bytes(const mr_file_client *c);

typedef struct mr_file_wait {
    bool (*told_to_end)(void *ctx);                                     /* may be NULL */
    void (*progress)(void *ctx, size_t done_bytes, size_t total_bytes); /* of this fetch; may be NULL */
    void *ctx;                                                          /* argument of both functions */
} mr_file_wait;

/* Fetches the blocks of these ranges that neither this host nor the cached file has. */
MR_MUST_USE mr_status mr_file_client_fetch(mr_file_client *c, const mr_file_range *ranges, int32_t n,
                                           const mr_file_wait *wait, mr_err *err);
/* Waits until all fetched blocks are on the disk. An error says that the disk could not keep them. */
MR_MUST_USE mr_status mr_file_client_settle(mr_file_client *c, const mr_file_wait *wait, mr_err *err);

#endif
