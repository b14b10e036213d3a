/* coordinator/job/prefix_cache.h - which KV block holds the content of a key, and which blocks are cached.
 * A block has up to two keys: the key of its whole content, and the key of the rows at its beginning that belong to a
 * prompt, without the prompt's last row. A key is promised while its rows have not been issued in a step. Then the key
 * is ready: later steps may read the rows. A cached block has no references and at least one ready key. The block that
 * was cached longest is evicted first.
 * Owns:    its tables, sized at create. Threads: bound to the coordinator thread. Nothing is allocated after create. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_PREFIX_CACHE_H
#define MR_COORDINATOR_JOB_PREFIX_CACHE_H

#include <stddef.h>

#include "coordinator/job/prefix_key.h"
#include "engine/base/status.h"

typedef enum mr_prefix_part { MR_PREFIX_WHOLE, MR_PREFIX_BEGIN, MR_PREFIX_PARTS } mr_prefix_part;

enum { MR_NO_BLOCK = -1 };

/* A list node in the memory of a waiter. The waiter waits until a promised key is ready. {0}: it waits for no key. */
typedef struct mr_prefix_wait mr_prefix_wait;
struct mr_prefix_wait {
    mr_prefix_wait *next, **at;
};

typedef struct mr_prefix_cache mr_prefix_cache;

MR_MUST_USE mr_status mr_prefix_cache_create(int32_t n_blocks, mr_prefix_cache **out, mr_err *err);
void mr_prefix_cache_destroy(mr_prefix_cache *c);

/* The block of a key, or MR_NO_BLOCK. *out_is_ready is set only if there is a block. */
int32_t mr_prefix_cache_find(const mr_prefix_cache *c, const mr_prefix_key *key, bool *out_is_ready);
/* Promises the content of key in this part of block. Nothing happens if another block has the key already. */
void mr_prefix_cache_promise(mr_prefix_cache *c, int32_t block, mr_prefix_part part, const mr_prefix_key *key);
/* Makes a promised key ready. Nothing happens if no key was promised. */
void mr_prefix_cache_fulfil(mr_prefix_cache *c, int32_t block, mr_prefix_part part);

/* Starts a wait of w, which must not be waiting, for a promised key. The wait ends when the key is ready or
 * forgotten. */
void mr_prefix_cache_wait(mr_prefix_cache *c, const mr_prefix_key *promised, mr_prefix_wait *w);
/* Takes one waiter whose wait has ended; each waiter is returned once. NULL: there is none. */
mr_prefix_wait *mr_prefix_cache_take_woken(mr_prefix_cache *c);
static inline bool mr_prefix_wait_is_on(const mr_prefix_wait *w) {
    return w->at != NULL;
}
/* Cancels the wait. mr_prefix_cache_take_woken will not return w. */
void mr_prefix_wait_end(mr_prefix_wait *w);

/* The block has no references any more. Its promised keys are forgotten. Returns whether a key is ready: the block is
 * then cached. */
bool mr_prefix_cache_put(mr_prefix_cache *c, int32_t block);
/* A cached block has a reference again: it is no longer cached. */
void mr_prefix_cache_take(mr_prefix_cache *c, int32_t block);
/* Forgets the keys of a cached block, which is no longer cached then. */
void mr_prefix_cache_drop(mr_prefix_cache *c, int32_t block);
/* Evicts the block that was cached longest: forgets its keys and returns it. MR_NO_BLOCK: no block is cached. */
int32_t mr_prefix_cache_evict(mr_prefix_cache *c);

/* Whether this key of the block is ready. */
bool mr_prefix_cache_is_ready(const mr_prefix_cache *c, int32_t block, mr_prefix_part part);
bool mr_prefix_cache_is_cached(const mr_prefix_cache *c, int32_t block);
int32_t mr_prefix_cache_n_cached(const mr_prefix_cache *c);

#endif
