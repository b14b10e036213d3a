/* worker/files/file_hashes.h - a model file that this host has, and the hashes of its blocks. Threads of this object
 * compute the hashes on request. The cache folder keeps the hashes, so that the next start does not compute them again.
 *   DEVICE-INODE.hashes (of a part alone: DEVICE-INODE-part.hashes)
 *                        "MRH1", u32 block size, u64 file size, u64 modification time; one SHA-256 for each block, zero
 *                        where the hash is not known; XXH3-64 of all bytes before
 * Of a model in parts, a host may have some parts only.
 * Owns:    descriptors, threads. Borrows: ctx.
 * Threads: the caller uses one thread. The threads of this object call `ready`.
 * Errors:  of opening and reading the model file. A cache file that cannot be read or written is ignored. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_HASHES_H
#define MR_WORKER_FILES_FILE_HASHES_H

#include "engine/base/status.h"
#include "engine/gguf/part_files.h"
#include "worker/files/file_blocks.h"

typedef struct mr_file_hashes_config {
    const char *path;
    const mr_part_place *parts; /* [n_parts], read by open only; NULL: one part alone, number `part` */
    int32_t n_parts, part;
    const char *folder; /* cache folder, must exist; NULL: hashes are not kept */
    int32_t n_threads;  /* started when the first hash has to be computed */
    /* Called when a hash is computed or reading fails. A lock is held: ready must not call back. */
    void (*ready)(void *ctx);
    void *ctx;
} mr_file_hashes_config;

typedef struct mr_file_hashes mr_file_hashes;

MR_MUST_USE mr_status mr_file_hashes_open(const mr_file_hashes_config *config, mr_file_hashes **out, mr_err *err);
/* Stops computing and keeps the computed hashes in the cache folder. NULL is accepted. */
void mr_file_hashes_close(mr_file_hashes *h);

/* The hashes of blocks [first, first + n) of the file. If some hashes are not known yet, *out_known is false, out is
 * not written, and the threads compute the missing hashes in the order of the file. Once reading has failed, every call
 * returns the error. MR_E_NOT_FOUND: this host does not have the part in which a block lies. */
MR_MUST_USE mr_status mr_file_hashes_get(mr_file_hashes *h, uint64_t first, uint32_t n, mr_file_hash *out,
                                         bool *out_known, mr_err *err);
/* The size of the file. */
uint64_t mr_file_hashes_bytes(const mr_file_hashes *h);
/* Reads block idx into out. */
MR_MUST_USE mr_status mr_file_hashes_read(const mr_file_hashes *h, uint64_t idx, void *out, mr_err *err);

#endif
