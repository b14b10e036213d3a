/* coordinator/job/prefix_key.h - what the content of a KV block depends on, as a SHA-256 chain: model, numerics and KV
 * type first, then the token ids, block by block. Equal keys are equal content (invariant I1).
 * Owns:    nothing. Threads: any. Nothing is allocated. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_PREFIX_KEY_H
#define MR_COORDINATOR_JOB_PREFIX_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

typedef struct mr_prefix_key {
    uint8_t bytes[32];
} mr_prefix_key;

/* What the content of KV blocks depends on besides ids, equal for all sequences of a job. There are no adapters yet;
 * they will belong here. */
typedef struct mr_prefix_base {
    uint64_t model_digest;
    int32_t kv_type; /* GGUF type number */
    bool fast_numerics;
} mr_prefix_base;

/* The key of an empty list of ids. */
void mr_prefix_key_init(const mr_prefix_base *base, mr_prefix_key *out);
/* The key of the content of parent, followed by n ids. out may be parent. */
void mr_prefix_key_extend(const mr_prefix_key *parent, const int32_t *ids, int32_t n, mr_prefix_key *out);

/* The keys of a prompt of n > 0 ids: out[0 .. n / MR_WIRE_BLOCK_TOKENS - 1] are the keys of its whole blocks, and the
 * next element is the key of all ids but the last. base: the key of no ids. Takes some 30 ns for each id on CPUs
 * without SHA-256 instructions. */
void mr_prefix_keys_of_prompt(const mr_prefix_key *base, const int32_t *ids, int32_t n, mr_prefix_key *out);
static inline size_t mr_prefix_n_keys(int32_t n_prompt) {
    return (size_t)(n_prompt / MR_WIRE_BLOCK_TOKENS) + 1;
}

/* The keys of the whole blocks of a sequence: first the keys of the prompt, which sequences share, then those
 * behind. */
typedef struct mr_prefix_keys {
    const mr_prefix_key *prompt; /* [n_prompt] */
    int32_t n_prompt;
    mr_prefix_key *behind;
} mr_prefix_keys;
static inline const mr_prefix_key *mr_prefix_keys_at(const mr_prefix_keys *keys, int32_t i) {
    return i < keys->n_prompt ? &keys->prompt[i] : &keys->behind[i - keys->n_prompt];
}

#endif
