/* worker/files/file_hashes.h - a model file that this host has, and the hashes of its blocks: computed by threads of
 * its own when they are wanted, and kept in the cache folder, so that the next start does not compute them again.
 * DEVICE-INODE.hashes  "MRH1", u32 block size, u64 file size, u64 time of change; one SHA-256 a block, zero where it is
 * not known; XXH3-64 of all that
 * Owns:    a descriptor, threads. Borrows: ctx. Threads: one; `ready` is called by threads of its own.
 * Errors:  of opening and reading the file. A cache that cannot be used is none. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_HASHES_H
#define MR_WORKER_FILES_FILE_HASHES_H

#include "engine/base/status.h"
#include "worker/files/file_blocks.h"

typedef struct mr_file_hashes_config {
    const char *path;
    uint64_t file_bytes;      /* that it has to have */
    const char *folder;       /* of the cache, exists; NULL: hashes are not kept */
    int32_t n_threads;        /* started with the first hash that has to be computed */
    void (*ready)(void *ctx); /* hashes have become known, or cannot be read */
    void *ctx;
} mr_file_hashes_config;

typedef struct mr_file_hashes mr_file_hashes;

MR_MUST_USE mr_status mr_file_hashes_open(const mr_file_hashes_config *config, mr_file_hashes **out, mr_err *err);
/* Gives up what is not computed yet, and keeps what is. NULL is accepted. */
void mr_file_hashes_close(mr_file_hashes *h);

/* The hashes of blocks [first, first + n) of the file; *out_known stays false while some are not computed: they will
 * be, in the order of the file. Once reading has failed, that is the error of every call. */
MR_MUST_USE mr_status mr_file_hashes_get(mr_file_hashes *h, uint64_t first, uint32_t n, mr_file_hash *out,
                                         bool *out_known, mr_err *err);
/* Reads block idx into out. */
MR_MUST_USE mr_status mr_file_hashes_read(const mr_file_hashes *h, uint64_t idx, void *out, mr_err *err);

#endif
