/* worker/files/file_blocks.h - a model file as blocks of MR_FILE_BLOCK_BYTES, each named by its SHA-256; the last one
 * is shorter. What a rank answers to a FileRequest is a frame of the link MR_LINK_FILE: step is the first block, type
 * says what it is, rows how many hashes there are, row_bytes is the request's fetch. Threads: pure functions. */
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
    MR_FILE_ANSWER_BLOCK,      /* its bytes */
    MR_FILE_ANSWER_REFUSAL,    /* a text that says why */
} mr_file_answer;

enum { MR_FILE_HASH_TEXT = 17 };

void mr_file_hash_of(const void *data, size_t bytes, mr_file_hash *out);
/* The first half of it in hexadecimal digits, for messages; returns out. */
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
static inline uint64_t mr_file_block_at(uint64_t idx) {
    return idx * MR_FILE_BLOCK_BYTES;
}
/* idx < mr_file_n_blocks(file_bytes). */
static inline size_t mr_file_block_bytes(uint64_t file_bytes, uint64_t idx) {
    uint64_t rest = file_bytes - mr_file_block_at(idx);
    return rest < MR_FILE_BLOCK_BYTES ? (size_t)rest : MR_FILE_BLOCK_BYTES;
}

#endif
