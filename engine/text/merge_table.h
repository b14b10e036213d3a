/* engine/text/merge_table.h - the merges of a model file: which two tokens merge into which, and in which order.
 * Owns:    a hash table.
 * Threads: does not change once created. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_MERGE_TABLE_H
#define MR_ENGINE_TEXT_MERGE_TABLE_H

#include "engine/text/merge.h"
#include "engine/text/vocab.h"

typedef struct merge_slot {
    uint64_t pair; /* ids of the left and the right token */
    uint32_t rank;
    int32_t id; /* the token of the result; -1: the slot is empty */
} merge_slot;

typedef struct merge_table {
    merge_slot *slots; /* at most two thirds full; NULL before init */
    size_t mask;
    uint64_t key;
    int32_t n_skipped; /* merges that name a token which is not in the vocabulary */
} merge_table;

/* The caller passes a zeroed m, and calls deinit even after an error. MR_E_FORMAT: no merges, or a merge that is not
 * two texts. */
MR_MUST_USE mr_status merge_table_init(merge_table *m, const vocab *v, const mr_vocab_desc *desc, mr_err *err);
void merge_table_deinit(merge_table *m);

/* A merge_pair_fn whose ctx is a merge_table: pairs merge in the order of the file. */
bool merge_table_pair(const void *ctx, const merge_symbol *a, const merge_symbol *b, uint32_t *out_order,
                      int32_t *out_id);

#endif
