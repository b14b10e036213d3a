// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/prefix_cache.h"

#include <string.h>

#include "engine/base/mem.h"

typedef enum key_state { ABSENT, PROMISED, READY } key_state;

/* A key that a block may have. Its index is block * MR_PREFIX_PARTS + part. */
typedef struct key_entry {
    mr_prefix_key key;
    key_state state;
    int32_t next; /* in the same bucket; -1: none */
    mr_prefix_wait *waits;
} key_entry;

/* The neighbours of a cached block in the order of caching. */
typedef struct neighbours {
    int32_t older, newer; /* MR_NO_BLOCK at the ends */
    bool is_cached;
} neighbours;

struct mr_prefix_cache {
    key_entry *entries; /* [n_blocks * MR_PREFIX_PARTS] */
    int32_t *buckets;   /* [mask + 1]: the first entry of each */
    uint64_t mask;
    neighbours *cached; /* [n_blocks] */
    int32_t oldest, newest, n_cached;
    mr_prefix_wait *woken;
};

mr_status mr_prefix_cache_create(int32_t n_blocks, mr_prefix_cache **out, mr_err *err) {
    mr_prefix_cache *c = mr_alloc(sizeof *c);
    size_t n_entries = (size_t)n_blocks * MR_PREFIX_PARTS, n_buckets = 1;
    while (n_buckets < n_entries)
        n_buckets *= 2;
    if (c) {
        *c = (mr_prefix_cache){.mask = n_buckets - 1, .oldest = MR_NO_BLOCK, .newest = MR_NO_BLOCK};
        c->entries = mr_alloc_array(n_entries, sizeof *c->entries);
        c->buckets = mr_alloc_array(n_buckets, sizeof *c->buckets);
        c->cached = mr_alloc_array((size_t)n_blocks, sizeof *c->cached);
    }
    if (!c || !c->entries || !c->buckets || !c->cached) {
        mr_prefix_cache_destroy(c);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the keys of %d KV blocks", n_blocks);
    }
    for (size_t i = 0; i < n_buckets; i++)
        c->buckets[i] = -1;
    *out = c;
    return MR_OK;
}

void mr_prefix_cache_destroy(mr_prefix_cache *c) {
    if (!c)
        return;
    mr_free(c->entries);
    mr_free(c->buckets);
    mr_free(c->cached);
    mr_free(c);
}

/* --- Keys -------------------------------------------------------------------------------------------------------- */

static int32_t *bucket_of(const mr_prefix_cache *c, const mr_prefix_key *key) {
    uint64_t hash;
    memcpy(&hash, key->bytes, sizeof hash); /* SHA-256: any of its bits are a good hash */
    return &c->buckets[hash & c->mask];
}

static int32_t find(const mr_prefix_cache *c, const mr_prefix_key *key) {
    int32_t i = *bucket_of(c, key);
    while (i >= 0 && memcmp(&c->entries[i].key, key, sizeof *key) != 0)
        i = c->entries[i].next;
    return i;
}

int32_t mr_prefix_cache_find(const mr_prefix_cache *c, const mr_prefix_key *key, bool *out_is_ready) {
    int32_t i = find(c, key);
    if (i < 0)
        return MR_NO_BLOCK;
    *out_is_ready = c->entries[i].state == READY;
    return i / MR_PREFIX_PARTS;
}

static int32_t entry_of(int32_t block, mr_prefix_part part) {
    return block * MR_PREFIX_PARTS + (int32_t)part;
}

void mr_prefix_cache_promise(mr_prefix_cache *c, int32_t block, mr_prefix_part part, const mr_prefix_key *key) {
    key_entry *e = &c->entries[entry_of(block, part)];
    MR_ASSERT(e->state == ABSENT);
    if (find(c, key) >= 0)
        return;
    int32_t *bucket = bucket_of(c, key);
    *e = (key_entry){.key = *key, .state = PROMISED, .next = *bucket};
    *bucket = entry_of(block, part);
}

/* --- Waiters ----------------------------------------------------------------------------------------------------- */

static void put_first(mr_prefix_wait **list, mr_prefix_wait *w) {
    *w = (mr_prefix_wait){.next = *list, .at = list};
    if (w->next)
        w->next->at = &w->next;
    *list = w;
}

void mr_prefix_wait_end(mr_prefix_wait *w) {
    *w->at = w->next;
    if (w->next)
        w->next->at = w->at;
    *w = (mr_prefix_wait){0};
}

void mr_prefix_cache_wait(mr_prefix_cache *c, const mr_prefix_key *promised, mr_prefix_wait *w) {
    int32_t i = find(c, promised);
    MR_ASSERT(i >= 0 && c->entries[i].state == PROMISED && !mr_prefix_wait_is_on(w));
    put_first(&c->entries[i].waits, w);
}

mr_prefix_wait *mr_prefix_cache_take_woken(mr_prefix_cache *c) {
    mr_prefix_wait *w = c->woken;
    if (w)
        mr_prefix_wait_end(w);
    return w;
}

static void wake(mr_prefix_cache *c, key_entry *e) {
    for (mr_prefix_wait *w; (w = e->waits);) {
        mr_prefix_wait_end(w);
        put_first(&c->woken, w);
    }
}

void mr_prefix_cache_fulfil(mr_prefix_cache *c, int32_t block, mr_prefix_part part) {
    key_entry *e = &c->entries[entry_of(block, part)];
    if (e->state != PROMISED)
        return;
    e->state = READY;
    wake(c, e);
}

static void forget(mr_prefix_cache *c, int32_t entry) {
    key_entry *e = &c->entries[entry];
    if (e->state == ABSENT)
        return;
    int32_t *at = bucket_of(c, &e->key);
    while (*at != entry)
        at = &c->entries[*at].next;
    *at = e->next;
    e->state = ABSENT;
    wake(c, e);
}

/* --- Cached blocks ----------------------------------------------------------------------------------------------- */

bool mr_prefix_cache_put(mr_prefix_cache *c, int32_t block) {
    bool any = false;
    for (mr_prefix_part part = 0; part < MR_PREFIX_PARTS; part++) {
        int32_t i = entry_of(block, part);
        if (c->entries[i].state == PROMISED)
            forget(c, i);
        any = any || c->entries[i].state == READY;
    }
    if (!any)
        return false;
    c->cached[block] = (neighbours){.older = c->newest, .newer = MR_NO_BLOCK, .is_cached = true};
    *(c->newest >= 0 ? &c->cached[c->newest].newer : &c->oldest) = block;
    c->newest = block;
    c->n_cached++;
    return true;
}

void mr_prefix_cache_take(mr_prefix_cache *c, int32_t block) {
    neighbours *n = &c->cached[block];
    MR_ASSERT(n->is_cached);
    *(n->older >= 0 ? &c->cached[n->older].newer : &c->oldest) = n->newer;
    *(n->newer >= 0 ? &c->cached[n->newer].older : &c->newest) = n->older;
    n->is_cached = false;
    c->n_cached--;
}

void mr_prefix_cache_drop(mr_prefix_cache *c, int32_t block) {
    mr_prefix_cache_take(c, block);
    for (mr_prefix_part part = 0; part < MR_PREFIX_PARTS; part++)
        forget(c, entry_of(block, part));
}

int32_t mr_prefix_cache_evict(mr_prefix_cache *c) {
    int32_t block = c->oldest;
    if (block != MR_NO_BLOCK)
        mr_prefix_cache_drop(c, block);
    return block;
}

bool mr_prefix_cache_is_ready(const mr_prefix_cache *c, int32_t block, mr_prefix_part part) {
    return c->entries[entry_of(block, part)].state == READY;
}

bool mr_prefix_cache_is_cached(const mr_prefix_cache *c, int32_t block) {
    return c->cached[block].is_cached;
}

int32_t mr_prefix_cache_n_cached(const mr_prefix_cache *c) {
    return c->n_cached;
}
