/* engine/text/merge_table.c - loads the merges of a model file into a hash table. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/merge_table.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/byte_alphabet.h"

static uint64_t pair_of_ids(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Returns the slot that holds pair, or the empty slot where pair belongs. */
static merge_slot *find_slot(const merge_table *m, uint64_t pair) {
    size_t i = (size_t)token_index_mix(pair ^ m->key, UINT64_C(0x9E3779B97F4A7C15)) & m->mask;
    while (m->slots[i].id >= 0 && m->slots[i].pair != pair)
        i = (i + 1) & m->mask;
    return &m->slots[i];
}

static bool allocate(merge_table *m, int32_t n_merges) {
    size_t n_slots = 16;
    while (n_slots < (size_t)n_merges + (size_t)n_merges / 2)
        n_slots *= 2;
    m->mask = n_slots - 1;
    m->key = token_index_random_key();
    m->slots = mr_alloc_array(n_slots, sizeof *m->slots);
    for (size_t i = 0; m->slots && i < n_slots; i++)
        m->slots[i].id = -1;
    return m->slots != NULL;
}

/* Returns the plain-text token named by one half of a merge, or -1. buf has room for one token. */
static int32_t half_id(const vocab *v, mr_str half, char *buf) {
    bool all = true;
    if (half.len > MR_VOCAB_MAX_TOKEN_BYTES)
        return -1;
    size_t n = v->kind == VOCAB_BPE ? byte_alphabet_decode(half, buf, &all) : vocab_spaces_decode(half, buf);
    return all ? vocab_find_piece(v, buf, n) : -1;
}

/* Adds one merge. Returns false when one of its three tokens is not in the vocabulary. buf has room for two tokens. */
static bool add_merge(merge_table *m, const vocab *v, mr_str left, mr_str right, uint32_t rank, char *buf) {
    int32_t left_id = half_id(v, left, buf);
    int32_t right_id = left_id < 0 ? -1 : half_id(v, right, buf);
    if (right_id < 0)
        return false;
    mr_str l = vocab_piece(v, left_id), r = vocab_piece(v, right_id);
    memcpy(buf, l.data, l.len);
    memcpy(buf + l.len, r.data, r.len);
    int32_t id = vocab_find_piece(v, buf, l.len + r.len);
    if (id < 0)
        return false;
    uint64_t pair = pair_of_ids(left_id, right_id);
    merge_slot *slot = find_slot(m, pair);
    if (slot->id < 0)
        *slot = (merge_slot){.pair = pair, .rank = rank, .id = id};
    return true;
}

static mr_status load(merge_table *m, const vocab *v, const mr_vocab_desc *desc, char *buf, mr_err *err) {
    for (int32_t i = 0; i < desc->n_merges; i++) {
        mr_str text = desc->merges[i];
        /* The halves contain no space: files write a space as another character. */
        const char *space = text.len ? memchr(text.data, ' ', text.len) : NULL;
        size_t at = space ? (size_t)(space - text.data) : 0;
        if (at == 0 || at + 1 >= text.len)
            return mr_err_set(err, MR_E_FORMAT, "merge %d is not two texts with a space between them", i);
        mr_str left = {text.data, at}, right = {text.data + at + 1, text.len - at - 1};
        if (!add_merge(m, v, left, right, (uint32_t)i, buf))
            m->n_skipped++;
    }
    return MR_OK;
}

mr_status merge_table_init(merge_table *m, const vocab *v, const mr_vocab_desc *desc, mr_err *err) {
    if (desc->n_merges < 1 || desc->n_merges > MR_VOCAB_MAX_MERGES || !desc->merges)
        return mr_err_set(err, MR_E_FORMAT, "tokenizer.ggml.merges has %d entries; 1 to %d are allowed", desc->n_merges,
                          MR_VOCAB_MAX_MERGES);
    mr_status s;
    char *buf = mr_alloc(2 * MR_VOCAB_MAX_TOKEN_BYTES);
    if (!buf || !allocate(m, desc->n_merges))
        s = mr_err_set(err, MR_E_NO_MEMORY, "no memory for %d merges", desc->n_merges);
    else
        s = load(m, v, desc, buf, err);
    mr_free(buf);
    return s;
}

void merge_table_deinit(merge_table *m) {
    mr_free(m->slots);
    *m = (merge_table){0};
}

bool merge_table_pair(const void *ctx, const merge_symbol *a, const merge_symbol *b, uint32_t *out_order,
                      int32_t *out_id) {
    const merge_table *m = ctx;
    if (a->id < 0 || b->id < 0)
        return false;
    const merge_slot *slot = find_slot(m, pair_of_ids(a->id, b->id));
    *out_order = slot->rank;
    *out_id = slot->id;
    return slot->id >= 0;
}
