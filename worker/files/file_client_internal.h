/* worker/files/file_client_internal.h - the fetch, for file_client.c and file_client_hashes.c. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_CLIENT_INTERNAL_H
#define MR_WORKER_FILES_FILE_CLIENT_INTERNAL_H

#include "proto/link.h"
#include "worker/files/file_cache.h"
#include "worker/files/file_client.h"

enum { NOBODY = -1 };

typedef enum block_state {
    BLOCK_IDLE,       /* not part of this fetch */
    BLOCK_NO_HASH,    /* the hash has to be requested */
    BLOCK_HASH_ASKED, /* the hash is requested from source `asked` */
    BLOCK_HASHED,     /* the hash is known, those of other blocks of the part are not */
    BLOCK_KNOWN,      /* the hash is known, the cache may have the block */
    BLOCK_MISSING,    /* the hash is known, the block has to be requested */
    BLOCK_ASKED,      /* the block is requested from source `asked` */
    BLOCK_HERE,       /* the block is in the cache */
} block_state;

typedef struct block {
    mr_file_hash hash;
    uint8_t state;
    int8_t asked, hashed_by; /* indices of sources, or NOBODY */
    uint8_t failed;          /* bit mask of the sources whose block did not match the hash */
    bool is_due;             /* this fetch lacks it */
} block;

typedef struct source {
    int32_t rank;
    mr_inbox *in; /* NULL: the source was dropped, or the links are closed */
    mr_outbox *out;
    uint32_t n_hashes_due;          /* requested, and not received */
    int32_t n_block_requests;       /* open requests for blocks */
    int64_t heard_ns;               /* time of the last answer, or of the last moment when nothing was due */
    bool warned;                    /* the log has named this source as silent in this fetch */
    uint64_t next_hash, next_block; /* no block before this index is to be requested from this source */
} source;

struct mr_file_client {
    mr_file_client_config config;
    mr_file_cache *cache;
    mr_file_part *parts; /* [n_parts]: where config.parts points; sources that were dropped are left out */
    uint64_t file_bytes, n_blocks;
    block *blocks; /* [n_blocks] */
    /* Of the part that is fetched: its blocks, how many of them the fetch still lacks, and its sources. */
    mr_file_part *part;
    uint64_t first, end, n_missing;
    uint64_t n_known, next_known; /* blocks that may be in the cache; none of them is before next_known */
    uint64_t n_unknown; /* blocks without a hash, until the hashes make the root of the part; 0: nothing to prove */
    source sources[MR_MAX_PART_SOURCES];
    int32_t n_sources, n_live; /* n_live: sources with open links */
    uint32_t fetch; /* number of this fetch, in its requests and answers; answers of an earlier fetch are ignored */
    uint64_t done_bytes, total_bytes, moved_bytes;
    mr_status lost; /* error of the source that was dropped last */
    mr_err lost_text;
};

/* file_client.c */
size_t file_client_block_bytes(const mr_file_client *c, uint64_t idx);
MR_MUST_USE mr_status file_client_send_request(mr_file_client *c, source *s, Millrace__FileRequest__What what,
                                               uint64_t first, uint32_t n, bool *out_sent, mr_err *err);
/* Makes every source search for missing blocks from `first` on again. */
void file_client_look_again(mr_file_client *c, uint64_t first);
MR_MUST_USE mr_status file_client_unexpected(const mr_frame *f, mr_err *err);
void file_client_note_here(mr_file_client *c, block *b);

/* file_client_hashes.c */
/* Wants the hashes of all blocks of the part, from the first live source. */
void file_client_begin_proof(mr_file_client *c);
/* The source that gives the hashes of a part whose root is known. */
int32_t file_client_first_live(const mr_file_client *c);
/* The hash of a block is known: it is in the cache or has to be requested. */
void file_client_note_hash(mr_file_client *c, uint64_t idx);
/* Looks for some of these blocks in the cache. Not for all, because each one in doubt is read and hashed. */
void file_client_look_up(mr_file_client *c);
MR_MUST_USE mr_status file_client_take_hashes(mr_file_client *c, int32_t idx, const mr_frame *f, const uint8_t *payload,
                                              mr_err *err);
/* Requests the hashes of the next run of blocks without a hash. */
MR_MUST_USE mr_status file_client_ask_for_hashes(mr_file_client *c, int32_t idx, bool *out_sent, mr_err *err);

#endif
