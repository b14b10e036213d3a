// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/ledger.h"

#include "engine/base/mem.h"

typedef struct slot_account {
    int32_t n_held;
    int32_t copy_of, copy_idx; /* source block of the copy (MR_NO_BLOCK: none), index of the target in the table */
} slot_account;

struct mr_ledger {
    int32_t n_blocks, n_slots, max_blocks;
    int32_t n_free;        /* without cached blocks */
    uint32_t *free_blocks; /* a stack */
    int32_t *n_refs;       /* [n_blocks] */
    uint32_t *versions;    /* [n_blocks] */
    uint32_t *tables;      /* [n_slots][max_blocks] */
    uint32_t *found;       /* [max_blocks]: the whole blocks of the last look-up */
    int64_t n_looked_up;
    slot_account *slots;
    mr_prefix_cache *cache;
};

mr_status mr_ledger_create(int32_t n_blocks, int32_t n_slots, int32_t max_blocks, mr_ledger **out, mr_err *err) {
    mr_ledger *l = mr_alloc(sizeof *l);
    size_t n_entries = 0;
    mr_status status = MR_OK;
    if (l && mr_mul_size((size_t)n_slots, (size_t)max_blocks, &n_entries)) {
        *l = (mr_ledger){.n_blocks = n_blocks, .n_slots = n_slots, .max_blocks = max_blocks, .n_free = n_blocks};
        l->free_blocks = mr_alloc_array((size_t)n_blocks, sizeof *l->free_blocks);
        l->n_refs = mr_alloc_array((size_t)n_blocks, sizeof *l->n_refs);
        l->versions = mr_alloc_array((size_t)n_blocks, sizeof *l->versions);
        l->tables = mr_alloc_array(n_entries, sizeof *l->tables);
        l->found = mr_alloc_array((size_t)max_blocks, sizeof *l->found);
        l->slots = mr_alloc_array((size_t)n_slots, sizeof *l->slots);
    }
    if (!l || !l->free_blocks || !l->n_refs || !l->versions || !l->tables || !l->found || !l->slots)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for an account of %d KV blocks and %d sequences", n_blocks,
                            n_slots);
    if (status == MR_OK)
        status = mr_prefix_cache_create(n_blocks, &l->cache, err);
    if (status != MR_OK) {
        mr_ledger_destroy(l);
        return status;
    }
    for (int32_t i = 0; i < n_blocks; i++)
        l->free_blocks[i] = (uint32_t)(n_blocks - 1 - i);
    for (int32_t i = 0; i < n_slots; i++)
        l->slots[i].copy_of = MR_NO_BLOCK;
    *out = l;
    return MR_OK;
}

void mr_ledger_destroy(mr_ledger *l) {
    if (!l)
        return;
    mr_prefix_cache_destroy(l->cache);
    mr_free(l->free_blocks);
    mr_free(l->n_refs);
    mr_free(l->versions);
    mr_free(l->tables);
    mr_free(l->found);
    mr_free(l->slots);
    mr_free(l);
}

/* --- References -------------------------------------------------------------------------------------------------- */

static void refer(mr_ledger *l, int32_t block) {
    if (l->n_refs[block]++ == 0)
        mr_prefix_cache_take(l->cache, block);
}

static void let_go(mr_ledger *l, int32_t block) {
    if (--l->n_refs[block] == 0 && !mr_prefix_cache_put(l->cache, block))
        l->free_blocks[l->n_free++] = (uint32_t)block;
}

static uint32_t take_any(mr_ledger *l) {
    int32_t block = l->n_free > 0 ? (int32_t)l->free_blocks[--l->n_free] : mr_prefix_cache_evict(l->cache);
    MR_ASSERT(block != MR_NO_BLOCK && l->n_refs[block] == 0);
    l->n_refs[block] = 1;
    l->versions[block]++;
    return (uint32_t)block;
}

static uint32_t *table_of(const mr_ledger *l, int32_t slot) {
    return l->tables + (size_t)slot * (size_t)l->max_blocks;
}

bool mr_ledger_grow(mr_ledger *l, int32_t slot, int32_t n) {
    slot_account *s = &l->slots[slot];
    if (n > l->max_blocks || n - s->n_held > mr_ledger_n_free(l))
        return false;
    while (s->n_held < n)
        table_of(l, slot)[s->n_held++] = take_any(l);
    return true;
}

const uint32_t *mr_ledger_table(const mr_ledger *l, int32_t slot) {
    return table_of(l, slot);
}

int32_t mr_ledger_n_held(const mr_ledger *l, int32_t slot) {
    return l->slots[slot].n_held;
}

static void drop_copy(mr_ledger *l, slot_account *s) {
    if (s->copy_of != MR_NO_BLOCK)
        let_go(l, s->copy_of);
    s->copy_of = MR_NO_BLOCK;
}

void mr_ledger_release(mr_ledger *l, int32_t slot) {
    slot_account *s = &l->slots[slot];
    drop_copy(l, s);
    /* From the end, because blocks are evicted in the order of their release: the last block of a beginning goes first.
     * It is of no use without the blocks before it. */
    while (s->n_held > 0)
        let_go(l, (int32_t)table_of(l, slot)[--s->n_held]);
}

int32_t mr_ledger_n_free(const mr_ledger *l) {
    return l->n_free + mr_prefix_cache_n_cached(l->cache);
}

int32_t mr_ledger_n_cached(const mr_ledger *l) {
    return mr_prefix_cache_n_cached(l->cache);
}

/* --- Shared beginnings ------------------------------------------------------------------------------------------- */

mr_ledger_hits mr_ledger_look_up(mr_ledger *l, const mr_prefix_keys *keys, int32_t n_keys, const mr_prefix_key *begin) {
    mr_ledger_hits hits = {.copy_of = MR_NO_BLOCK};
    MR_ASSERT(n_keys <= l->max_blocks);
    for (int32_t i = 0; i < n_keys + (begin != NULL); i++) {
        const mr_prefix_key *key = i < n_keys ? mr_prefix_keys_at(keys, i) : begin;
        bool is_ready;
        int32_t block = mr_prefix_cache_find(l->cache, key, &is_ready);
        l->n_looked_up++;
        if (block == MR_NO_BLOCK)
            return hits;
        hits.promised = is_ready ? hits.promised : key;
        if (hits.promised)
            continue;
        hits.n_unshared += l->n_refs[block] == 0;
        if (i < n_keys)
            l->found[hits.n_whole++] = (uint32_t)block;
        else
            hits.copy_of = block;
    }
    return hits;
}

int64_t mr_ledger_n_looked_up(const mr_ledger *l) {
    return l->n_looked_up;
}

void mr_ledger_wait(mr_ledger *l, const mr_ledger_hits *hits, mr_prefix_wait *w) {
    mr_prefix_cache_wait(l->cache, hits->promised, w);
}

mr_prefix_wait *mr_ledger_take_woken(mr_ledger *l) {
    return mr_prefix_cache_take_woken(l->cache);
}

bool mr_ledger_begin(mr_ledger *l, int32_t slot, const mr_ledger_hits *hits, int32_t n, int32_t spare) {
    slot_account *s = &l->slots[slot];
    MR_ASSERT(s->n_held == 0 && s->copy_of == MR_NO_BLOCK && hits->n_whole < n);
    if (n > l->max_blocks || mr_ledger_n_needed(hits, n) + spare > mr_ledger_n_free(l))
        return false;
    for (int32_t i = 0; i < hits->n_whole; i++) {
        refer(l, (int32_t)l->found[i]);
        table_of(l, slot)[s->n_held++] = l->found[i];
    }
    if (hits->copy_of != MR_NO_BLOCK) {
        refer(l, hits->copy_of);
        s->copy_of = hits->copy_of;
        s->copy_idx = hits->n_whole;
    }
    return mr_ledger_grow(l, slot, n);
}

bool mr_ledger_take_copy(mr_ledger *l, int32_t slot, uint32_t *out_from, uint32_t *out_to) {
    slot_account *s = &l->slots[slot];
    if (s->copy_of == MR_NO_BLOCK)
        return false;
    *out_from = (uint32_t)s->copy_of;
    *out_to = table_of(l, slot)[s->copy_idx];
    drop_copy(l, s);
    return true;
}

void mr_ledger_promise(mr_ledger *l, int32_t slot, int32_t idx, mr_prefix_part part, const mr_prefix_key *key) {
    int32_t block = (int32_t)table_of(l, slot)[idx];
    MR_ASSERT(idx < l->slots[slot].n_held);
    mr_prefix_cache_promise(l->cache, block, part, key);
}

void mr_ledger_publish(mr_ledger *l, int32_t slot, int32_t idx, mr_prefix_part part) {
    MR_ASSERT(idx < l->slots[slot].n_held);
    mr_prefix_cache_fulfil(l->cache, (int32_t)table_of(l, slot)[idx], part);
}

/* --- Blocks that outlive an epoch -------------------------------------------------------------------------------- */

static bool is_set(const uint8_t *bits, int32_t i) {
    return bits[i / 8] >> i % 8 & 1;
}

static int32_t mark(const mr_ledger *l, bool only_whole, uint8_t *bits) {
    int32_t n = 0;
    for (int32_t i = 0; i < l->n_blocks; i++) {
        bool is_whole = mr_prefix_cache_is_ready(l->cache, i, MR_PREFIX_WHOLE);
        bool is_ready = is_whole || (!only_whole && mr_prefix_cache_is_ready(l->cache, i, MR_PREFIX_BEGIN));
        if (l->n_refs[i] == 0 || !is_ready)
            continue;
        bits[i / 8] |= (uint8_t)(1 << i % 8);
        n++;
    }
    return n;
}

int32_t mr_ledger_mark_ready(const mr_ledger *l, uint8_t *bits) {
    return mark(l, false, bits);
}

int32_t mr_ledger_mark_whole(const mr_ledger *l, uint8_t *bits) {
    return mark(l, true, bits);
}

const uint32_t *mr_ledger_versions(const mr_ledger *l) {
    return l->versions;
}

void mr_ledger_release_all(mr_ledger *l) {
    for (int32_t i = 0; i < l->n_slots; i++)
        mr_ledger_release(l, i);
}

void mr_ledger_forget(mr_ledger *l, const uint8_t *kept) {
    for (int32_t i = 0; i < l->n_blocks; i++) {
        if (!mr_prefix_cache_is_cached(l->cache, i) || (kept && is_set(kept, i)))
            continue;
        mr_prefix_cache_drop(l->cache, i);
        l->free_blocks[l->n_free++] = (uint32_t)i;
    }
}

/* --- Check ------------------------------------------------------------------------------------------------------- */

/* Subtracts each existing reference from its block's count, and 1 for each entry of the free stack. */
static void subtract_all(const mr_ledger *l, int32_t *counts) {
    for (int32_t i = 0; i < l->n_slots; i++) {
        for (int32_t b = 0; b < l->slots[i].n_held; b++)
            counts[table_of(l, i)[b]]--;
        if (l->slots[i].copy_of != MR_NO_BLOCK)
            counts[l->slots[i].copy_of]--;
    }
    /* A count below 0 shows a block that is on the stack twice, or is cached as well. */
    for (int32_t i = 0; i < l->n_free; i++)
        counts[l->free_blocks[i]]--;
}

mr_status mr_ledger_check(const mr_ledger *l, mr_err *err) {
    int32_t *counts = mr_alloc_array((size_t)l->n_blocks, sizeof *counts);
    mr_status status = MR_OK;
    int32_t n_cached = 0;
    if (!counts)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to check %d KV blocks", l->n_blocks);
    for (int32_t i = 0; i < l->n_blocks; i++) {
        bool is_cached = mr_prefix_cache_is_cached(l->cache, i);
        counts[i] = l->n_refs[i] + (l->n_refs[i] == 0 && !is_cached); /* a free block is on the stack once */
        n_cached += is_cached;
    }
    subtract_all(l, counts);
    for (int32_t i = 0; i < l->n_blocks && status == MR_OK; i++)
        if (counts[i] != 0)
            status = mr_err_set(err, MR_E_INTERNAL, "KV block %d has %d references, and %d are there", i, l->n_refs[i],
                                l->n_refs[i] - counts[i]);
    if (status == MR_OK && n_cached != mr_prefix_cache_n_cached(l->cache))
        status = mr_err_set(err, MR_E_INTERNAL, "%d KV blocks are cached, and %d are counted", n_cached,
                            mr_prefix_cache_n_cached(l->cache));
    mr_free(counts);
    return status;
}
