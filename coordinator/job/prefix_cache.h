/* coordinator/job/prefix_cache.h - which KV block holds the content of a key, and the blocks that are kept for it
 * alone. A block has up to two keys: of its whole content, and of the rows at its beginning that a prompt brought,
 * without the prompt's last. A key is promised while the rows are not in any step yet; then it is ready: later steps
 * may read them. A cached block is one that nobody refers to and that has a ready key. Cached blocks stand in the order
 * in which they were put; the one that stood longest is evicted.
 * Owns:    its tables, sized at create. Threads: bound to the coordinator thread. Nothing is allocated after create. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_PREFIX_CACHE_H
#define MR_COORDINATOR_JOB_PREFIX_CACHE_H

#include <stddef.h>

#include "coordinator/job/prefix_key.h"
#include "engine/base/status.h"

typedef enum mr_prefix_part { MR_PREFIX_WHOLE, MR_PREFIX_BEGIN, MR_PREFIX_PARTS } mr_prefix_part;

enum { MR_NO_BLOCK = -1 };

/* A list node in the memory of a waiter. The waiter waits until a promised key is there. {0}: it waits for none. */
typedef struct mr_prefix_wait mr_prefix_wait;
struct mr_prefix_wait {
    mr_prefix_wait *next, **at;
};

typedef struct mr_prefix_cache mr_prefix_cache;

MR_MUST_USE mr_status mr_prefix_cache_create(int32_t n_blocks, mr_prefix_cache **out, mr_err *err);
void mr_prefix_cache_destroy(mr_prefix_cache *c);

/* The block of a key, or MR_NO_BLOCK. */
int32_t mr_prefix_cache_find(const mr_prefix_cache *c, const mr_prefix_key *key, bool *out_is_ready);
/* Promises the content of key in this part of a block, unless another block has the key already. */
void mr_prefix_cache_promise(mr_prefix_cache *c, int32_t block, mr_prefix_part part, const mr_prefix_key *key);
/* What was promised is ready; nothing happens where nothing was. */
void mr_prefix_cache_fulfil(mr_prefix_cache *c, int32_t block, mr_prefix_part part);

/* w, which waits for nothing, waits for a promised key: until it is ready, or will not be. */
void mr_prefix_cache_wait(mr_prefix_cache *c, const mr_prefix_key *promised, mr_prefix_wait *w);
/* One whose wait is over, each of them once; NULL: none. */
mr_prefix_wait *mr_prefix_cache_take_woken(mr_prefix_cache *c);
static inline bool mr_prefix_wait_is_on(const mr_prefix_wait *w) {
    return w->at != NULL;
}
/* It waits no more, nor will it be taken. */
void mr_prefix_wait_end(mr_prefix_wait *w);

/* Nobody refers to the block any more. It loses what was only promised, and is kept if a key is ready: returns that. */
bool mr_prefix_cache_put(mr_prefix_cache *c, int32_t block);
/* Somebody refers to a cached block again. */
void mr_prefix_cache_take(mr_prefix_cache *c, int32_t block);
/* Forgets the oldest cached block and returns it; MR_NO_BLOCK: none is cached. */
int32_t mr_prefix_cache_evict(mr_prefix_cache *c);

bool mr_prefix_cache_is_cached(const mr_prefix_cache *c, int32_t block);
int32_t mr_prefix_cache_n_cached(const mr_prefix_cache *c);

#endif
