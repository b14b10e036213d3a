// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/prefix_key.h"

#include <nettle/sha2.h>
#include <string.h>

#include "engine/base/numerics.h"

/* Numbers are hashed little-endian on any machine. */
static void add_number(struct sha256_ctx *sha, uint64_t value, size_t n_bytes) {
    uint8_t bytes[8];
    for (size_t i = 0; i < n_bytes; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    sha256_update(sha, n_bytes, bytes);
}

void mr_prefix_key_init(const mr_prefix_base *base, mr_prefix_key *out) {
    struct sha256_ctx sha;
    sha256_init(&sha);
    add_number(&sha, MR_NUMERICS_VERSION, 4);
    add_number(&sha, base->model_digest, 8);
    add_number(&sha, (uint64_t)base->kv_type, 4);
    add_number(&sha, base->fast_numerics, 1);
    sha256_digest(&sha, sizeof out->bytes, out->bytes);
}

void mr_prefix_key_extend(const mr_prefix_key *parent, const int32_t *ids, int32_t n, mr_prefix_key *out) {
    struct sha256_ctx sha;
    sha256_init(&sha);
    sha256_update(&sha, sizeof parent->bytes, parent->bytes);
    for (int32_t i = 0; i < n; i++)
        add_number(&sha, (uint32_t)ids[i], 4);
    sha256_digest(&sha, sizeof out->bytes, out->bytes);
}

void mr_prefix_keys_of_prompt(const mr_prefix_key *base, const int32_t *ids, int32_t n, mr_prefix_key *out) {
    int32_t last = n - 1, n_whole = n / MR_WIRE_BLOCK_TOKENS, at = last / MR_WIRE_BLOCK_TOKENS;
    for (int32_t i = 0; i < n_whole; i++)
        mr_prefix_key_extend(i ? &out[i - 1] : base, ids + i * MR_WIRE_BLOCK_TOKENS, MR_WIRE_BLOCK_TOKENS, &out[i]);
    mr_prefix_key_extend(at ? &out[at - 1] : base, ids + at * MR_WIRE_BLOCK_TOKENS, last % MR_WIRE_BLOCK_TOKENS,
                         &out[n_whole]);
}
