/* engine/text/token_index.h - finds a token by its bytes: a hash table over texts that lie one after the other. The
 * hash has a random key, so that nobody can make a file whose tokens all collide.
 * Owns:    its slots. Borrows: the bytes and their starts, which outlive it.
 * Threads: does not change once filled; then thread-safe. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_TOKEN_INDEX_H
#define MR_ENGINE_TEXT_TOKEN_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/str.h"

typedef struct token_slot {
    uint32_t tag; /* bits of the hash that do not choose the slot */
    int32_t id;   /* -1: the slot is empty */
} token_slot;

typedef struct token_index {
    token_slot *slots;
    size_t mask;
    uint64_t key;
    const char *bytes;      /* of all tokens */
    const uint32_t *starts; /* [n + 1] */
} token_index;

/* Makes room for n_tokens. Returns false without memory. */
bool token_index_init(token_index *ix, int32_t n_tokens, const char *bytes, const uint32_t *starts);
void token_index_deinit(token_index *ix);
/* Adds token id under its bytes. If another token has the same bytes, that token stays in the index. */
void token_index_add(token_index *ix, int32_t id);
/* Returns the id, or -1. */
int32_t token_index_find(const token_index *ix, const char *bytes, size_t len);

/* Returns a number that other processes cannot guess, as a key of a hash table. */
uint64_t token_index_random_key(void);
/* Mixes all bits of a and b into all bits of the result. */
static inline uint64_t token_index_mix(uint64_t a, uint64_t b) {
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#endif
