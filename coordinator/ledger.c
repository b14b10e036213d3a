// SPDX-License-Identifier: Apache-2.0
#include "coordinator/ledger.h"

#include "engine/base/mem.h"

typedef struct slot_account {
    int32_t n_blocks, n_reserved; /* reserved counts the blocks held, too */
} slot_account;

struct mr_ledger {
    int32_t n_blocks, n_slots, max_blocks;
    int32_t n_free, n_promised; /* promised: reserved and not yet held, over all slots */
    uint32_t *free_blocks;      /* a stack */
    uint32_t *tables;           /* [n_slots][max_blocks] */
    slot_account *slots;
};

mr_status mr_ledger_create(int32_t n_blocks, int32_t n_slots, int32_t max_blocks, mr_ledger **out, mr_err *err) {
    mr_ledger *l = mr_alloc(sizeof *l);
    size_t n_entries = 0;
    if (l && mr_mul_size((size_t)n_slots, (size_t)max_blocks, &n_entries)) {
        *l = (mr_ledger){.n_blocks = n_blocks, .n_slots = n_slots, .max_blocks = max_blocks, .n_free = n_blocks};
        l->free_blocks = mr_alloc_array((size_t)n_blocks, sizeof *l->free_blocks);
        l->tables = mr_alloc_array(n_entries, sizeof *l->tables);
        l->slots = mr_alloc_array((size_t)n_slots, sizeof *l->slots);
    }
    if (!l || !l->free_blocks || !l->tables || !l->slots) {
        mr_ledger_destroy(l);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for an account of %d KV blocks and %d sequences", n_blocks,
                          n_slots);
    }
    for (int32_t i = 0; i < n_blocks; i++)
        l->free_blocks[i] = (uint32_t)(n_blocks - 1 - i);
    *out = l;
    return MR_OK;
}

void mr_ledger_destroy(mr_ledger *l) {
    if (!l)
        return;
    mr_free(l->free_blocks);
    mr_free(l->tables);
    mr_free(l->slots);
    mr_free(l);
}

bool mr_ledger_reserve(mr_ledger *l, int32_t slot, int32_t n) {
    slot_account *s = &l->slots[slot];
    int32_t more = n - s->n_reserved;
    if (n > l->max_blocks || more > l->n_free - l->n_promised)
        return false;
    if (more > 0) {
        s->n_reserved = n;
        l->n_promised += more;
    }
    return true;
}

int32_t mr_ledger_grow(mr_ledger *l, int32_t slot, int32_t n) {
    slot_account *s = &l->slots[slot];
    int32_t before = s->n_blocks;
    MR_ASSERT(n <= s->n_reserved);
    while (s->n_blocks < n) {
        l->tables[(size_t)slot * (size_t)l->max_blocks + (size_t)s->n_blocks++] = l->free_blocks[--l->n_free];
        l->n_promised--;
    }
    return before;
}

const uint32_t *mr_ledger_table(const mr_ledger *l, int32_t slot) {
    return l->tables + (size_t)slot * (size_t)l->max_blocks;
}

void mr_ledger_release(mr_ledger *l, int32_t slot) {
    slot_account *s = &l->slots[slot];
    const uint32_t *table = mr_ledger_table(l, slot);
    l->n_promised -= s->n_reserved - s->n_blocks;
    for (int32_t i = s->n_blocks - 1; i >= 0; i--)
        l->free_blocks[l->n_free++] = table[i];
    *s = (slot_account){0};
}

int32_t mr_ledger_n_free(const mr_ledger *l) {
    return l->n_free;
}
