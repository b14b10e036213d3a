/* worker/files/file_blocks.c - the hash of a block. A file of its own, so that only this file needs the SHA-256 of
 * libnettle. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/files/file_blocks.h"

#include <nettle/sha2.h>
#include <stdio.h>

#include "engine/base/le.h"

void mr_file_hash_of(const void *data, size_t bytes, mr_file_hash *out) {
    struct sha256_ctx ctx;
    sha256_init(&ctx);
    sha256_update(&ctx, bytes, data);
    sha256_digest(&ctx, sizeof out->bytes, out->bytes);
}

void mr_file_root_of(uint64_t bytes, const mr_file_hash *hashes, mr_file_hash *out) {
    uint8_t size[sizeof bytes];
    struct sha256_ctx ctx;
    mr_store_le64(size, bytes);
    sha256_init(&ctx);
    sha256_update(&ctx, sizeof size, size);
    for (uint64_t i = 0; i < mr_file_n_blocks(bytes); i++)
        sha256_update(&ctx, sizeof hashes[i].bytes, hashes[i].bytes);
    sha256_digest(&ctx, sizeof out->bytes, out->bytes);
}

const char *mr_file_hash_text(const mr_file_hash *h, char out[MR_FILE_HASH_TEXT]) {
    for (int i = 0; i < MR_FILE_HASH_TEXT / 2; i++)
        snprintf(out + 2 * i, 3, "%02x", h->bytes[i]);
    return out;
}
