/* worker/files/file_blocks.h - a model file as blocks of MR_FILE_BLOCK_BYTES, each named by its SHA-256. The last
 * block may be shorter.
 * The answer to a FileRequest is a frame of the link MR_LINK_FILE_ANSWERS. Fields of the frame: step is the first
 * block, type is an mr_file_answer, rows is the number of hashes, row_bytes repeats the fetch of the request.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_BLOCKS_H
#define MR_WORKER_FILES_FILE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/limits.h"

typedef struct mr_file_hash {
    uint8_t bytes[MR_FILE_HASH_BYTES]; /* all zero: not known */
} mr_file_hash;

typedef enum mr_file_answer {
    MR_FILE_ANSWER_HASHES = 1, /* rows of MR_FILE_HASH_BYTES */
    MR_FILE_ANSWER_BLOCK,      /* the bytes of the block */
    MR_FILE_ANSWER_REFUSAL,    /* the reason as text, without a terminating zero */
} mr_file_answer;

enum { MR_FILE_HASH_TEXT = 17 };

void mr_file_hash_of(const void *data, size_t bytes, mr_file_hash *out);
/* The root of a file of so many bytes (worker/files/file_root.h). hashes: of all its blocks. */
void mr_file_root_of(uint64_t bytes, const mr_file_hash *hashes, mr_file_hash *out);
/* Writes the first 8 bytes of the hash in hexadecimal digits, for messages. Returns out. */
const char *mr_file_hash_text(const mr_file_hash *h, char out[MR_FILE_HASH_TEXT]);

static inline bool mr_file_hash_equal(const mr_file_hash *a, const mr_file_hash *b) {
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}
static inline bool mr_file_hash_known(const mr_file_hash *h) {
    const mr_file_hash none = {{0}};
    return !mr_file_hash_equal(h, &none);
}
static inline uint64_t mr_file_n_blocks(uint64_t file_bytes) {
    return file_bytes / MR_FILE_BLOCK_BYTES + (file_bytes % MR_FILE_BLOCK_BYTES > 0);
}
/* The offset of a block in the file. */
static inline uint64_t mr_file_block_at(uint64_t idx) {
    return idx * MR_FILE_BLOCK_BYTES;
}
/* idx < mr_file_n_blocks(file_bytes). */
static inline size_t mr_file_block_bytes(uint64_t file_bytes, uint64_t idx) {
    uint64_t rest = file_bytes - mr_file_block_at(idx);
    return rest < MR_FILE_BLOCK_BYTES ? (size_t)rest : MR_FILE_BLOCK_BYTES;
}

#endif
