/* coordinator/prefix_key.h - what the content of a KV block depends on, as a SHA-256 chain: model, numerics and KV type first,
 * then the token ids, block by block. Equal keys are equal content (invariant I1).
 * Owns:    nothing. Threads: any. Nothing is allocated. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PREFIX_KEY_H
#define MR_COORDINATOR_PREFIX_KEY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_prefix_key {
    uint8_t bytes[32];
} mr_prefix_key;

/* What all sequences of a job share. There are no adapters yet; they will belong here. */
typedef struct mr_prefix_base {
    uint64_t model_digest;
    int32_t kv_type; /* GGUF type number */
    bool fast_numerics;
} mr_prefix_base;

/* The key of no ids at all. */
void mr_prefix_key_init(const mr_prefix_base *base, mr_prefix_key *out);
/* The key of what stands behind parent, and n ids more. out may be parent. */
void mr_prefix_key_extend(const mr_prefix_key *parent, const int32_t *ids, int32_t n, mr_prefix_key *out);

#endif
