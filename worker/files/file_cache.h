/* worker/files/file_cache.h - a cache on disk for the blocks of a model file that came from other hosts. The cache
 * consists of two files. The first file has the offsets of the original and holes where no block is, so programs read
 * the first file like the original. The second file lists the blocks that are present.
 *   DIGEST-BYTES.gguf    the blocks
 *   DIGEST-BYTES.blocks  64 bytes: "MRB2", u32 block size, u64 file size, u64 digest, u64 time of sealing; then one
 *                        SHA-256 for each block; then one byte for each block: not 0 where sealing left the block in
 *                        doubt
 * Sealing writes the first file to the disk and notes its modification time in the list. If the modification time
 * differs later (a process was killed, a host went down, another process is writing), all blocks are in doubt. A block
 * in doubt is read and hashed before it counts as present. Several processes may use one cache at the same time,
 * because they write the same bytes at the same offset.
 * Owns:    its descriptors and the list in memory.
 * Threads: the caller uses one thread. Sealing runs on a second thread that the cache owns.
 * Errors:  MR_E_IO with the path: no space, no permission, or the cache file has another size. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_CACHE_H
#define MR_WORKER_FILES_FILE_CACHE_H

#include "engine/base/status.h"
#include "worker/files/file_blocks.h"

typedef struct mr_file_cache mr_file_cache;

/* folder must exist. digest names the model file (mr_gguf_digest). */
MR_MUST_USE mr_status mr_file_cache_open(const char *folder, uint64_t file_bytes, uint64_t digest, mr_file_cache **out,
                                         mr_err *err);
/* Waits for a sealing under way, and starts none. NULL is accepted. */
void mr_file_cache_close(mr_file_cache *c);
/* The path that the file with the blocks has in a folder. mr_free; NULL: no memory. */
char *mr_file_cache_name(const char *folder, uint64_t file_bytes, uint64_t digest);
/* The path of the file with the blocks. */
const char *mr_file_cache_path(const mr_file_cache *c);

/* Whether the block is present and has this hash. Reads and hashes the block if the block is in doubt. */
bool mr_file_cache_has(mr_file_cache *c, uint64_t idx, const mr_file_hash *hash);
/* Whether the list has a hash for the block, in doubt or not. */
bool mr_file_cache_lists(const mr_file_cache *c, uint64_t idx);
/* MR_E_IO: the file system has no room for so many more bytes. */
MR_MUST_USE mr_status mr_file_cache_check_room(const mr_file_cache *c, uint64_t bytes, mr_err *err);
/* Writes a block whose hash the caller has checked. */
MR_MUST_USE mr_status mr_file_cache_put(mr_file_cache *c, uint64_t idx, const void *data, const mr_file_hash *hash,
                                        mr_err *err);
/* Begins to write all blocks to the disk. The next start then trusts the blocks without hashing, except blocks that are
 * still in doubt. Writing may take seconds and goes on after this call. Also waits for an earlier sealing and returns
 * the error of that sealing. */
MR_MUST_USE mr_status mr_file_cache_seal(mr_file_cache *c, mr_err *err);
/* The result of sealing: *out_done stays false while sealing is under way. After an error the file may not hold the
 * blocks that were put. */
MR_MUST_USE mr_status mr_file_cache_sealed(mr_file_cache *c, bool *out_done, mr_err *err);

#endif
