/* worker/files/file_cache.h - the blocks of a model file that came from other hosts: a file with the offsets of the
 * original and holes where no block is, so that it is read like the original, and beside it a list of the blocks that
 * are there.
 *   DIGEST-BYTES.gguf    the blocks
 *   DIGEST-BYTES.blocks  64 bytes: "MRB2", u32 block size, u64 file size, u64 digest, u64 of sealing; then one SHA-256
 *                        a block; then one byte a block: not 0 where sealing left it in doubt
 * The list says when the blocks were sealed: the file was written to the disk, and had this time of change. Where it
 * has another one (a process was killed, a host went down, somebody else is writing), all blocks are in doubt. A block
 * in doubt is read and hashed before it counts. So several processes may use one cache at the same time: what they
 * write at one place is the same.
 * Owns:    its descriptors and the list in memory. Threads: one; sealing has another one behind it.
 * Errors:  MR_E_IO with path and bytes: no space, no right, or it is of another file. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_CACHE_H
#define MR_WORKER_FILES_FILE_CACHE_H

#include "engine/base/status.h"
#include "worker/files/file_blocks.h"

typedef struct mr_file_cache mr_file_cache;

/* folder exists. */
MR_MUST_USE mr_status mr_file_cache_open(const char *folder, uint64_t file_bytes, uint64_t digest, mr_file_cache **out,
                                         mr_err *err);
/* Does not seal, but waits for a sealing that goes on. NULL is accepted. */
void mr_file_cache_close(mr_file_cache *c);
/* Of the file with the blocks. */
const char *mr_file_cache_path(const mr_file_cache *c);

/* Whether the block is here and is the one of that hash. */
bool mr_file_cache_has(mr_file_cache *c, uint64_t idx, const mr_file_hash *hash);
/* The list has some hash for the block. */
bool mr_file_cache_lists(const mr_file_cache *c, uint64_t idx);
/* The file system has room for so many bytes more. */
MR_MUST_USE mr_status mr_file_cache_check_room(const mr_file_cache *c, uint64_t bytes, mr_err *err);
/* Takes a block in whose hash is this. */
MR_MUST_USE mr_status mr_file_cache_put(mr_file_cache *c, uint64_t idx, const void *data, const mr_file_hash *hash,
                                        mr_err *err);
/* Begins to write all blocks to the disk, so that the next start takes them without a look, but those still in doubt.
 * It may take seconds, so it goes on behind this call; what came of an earlier one is returned here too. */
MR_MUST_USE mr_status mr_file_cache_seal(mr_file_cache *c, mr_err *err);
/* What came of sealing: *out_done stays false while it goes on. An error means that the file is not what was put
 * there. */
MR_MUST_USE mr_status mr_file_cache_sealed(mr_file_cache *c, bool *out_done, mr_err *err);

#endif
