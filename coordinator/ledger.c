// SPDX-License-Identifier: Apache-2.0
#include "coordinator/ledger.h"

#include "engine/base/mem.h"

struct mr_ledger {
    int32_t n_blocks, n_slots, max_blocks;
    int32_t n_free;
    uint32_t *free_blocks; /* a stack */
    uint32_t *tables;      /* [n_slots][max_blocks] */
    int32_t *n_held;       /* [n_slots] */
};

mr_status mr_ledger_create(int32_t n_blocks, int32_t n_slots, int32_t max_blocks, mr_ledger **out, mr_err *err) {
    mr_ledger *l = mr_alloc(sizeof *l);
    size_t n_entries = 0;
    if (l && mr_mul_size((size_t)n_slots, (size_t)max_blocks, &n_entries)) {
        *l = (mr_ledger){.n_blocks = n_blocks, .n_slots = n_slots, .max_blocks = max_blocks, .n_free = n_blocks};
        l->free_blocks = mr_alloc_array((size_t)n_blocks, sizeof *l->free_blocks);
        l->tables = mr_alloc_array(n_entries, sizeof *l->tables);
        l->n_held = mr_alloc_array((size_t)n_slots, sizeof *l->n_held);
    }
    if (!l || !l->free_blocks || !l->tables || !l->n_held) {
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
    mr_free(l->n_held);
    mr_free(l);
}

static uint32_t *table_of(const mr_ledger *l, int32_t slot) {
    return l->tables + (size_t)slot * (size_t)l->max_blocks;
}

bool mr_ledger_grow(mr_ledger *l, int32_t slot, int32_t n) {
    int32_t *held = &l->n_held[slot];
    if (n > l->max_blocks || n - *held > l->n_free)
        return false;
    while (*held < n)
        table_of(l, slot)[(*held)++] = l->free_blocks[--l->n_free];
    return true;
}

const uint32_t *mr_ledger_table(const mr_ledger *l, int32_t slot) {
    return table_of(l, slot);
}

int32_t mr_ledger_n_held(const mr_ledger *l, int32_t slot) {
    return l->n_held[slot];
}

void mr_ledger_release(mr_ledger *l, int32_t slot) {
    for (int32_t i = l->n_held[slot] - 1; i >= 0; i--)
        l->free_blocks[l->n_free++] = table_of(l, slot)[i];
    l->n_held[slot] = 0;
}

int32_t mr_ledger_n_free(const mr_ledger *l) {
    return l->n_free;
}
