/* engine/text/merge.h - the merging that both kinds of vocabulary share: a list of symbols, neighbours of which merge
 * into one, always the pair that comes first; of equal pairs the leftmost. O(n log n) with a heap of candidates.
 * Owns:    work memory, kept between words.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_MERGE_H
#define MR_ENGINE_TEXT_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct merge_symbol {
    uint32_t start, len; /* in the word; len 0: merged into the one on its left */
    int32_t prev, next;  /* -1 at the ends */
    int32_t id;          /* token, or -1 for a character that is none */
} merge_symbol;

typedef struct merge_candidate {
    uint32_t order; /* lower merges first */
    int32_t left;   /* symbol */
    uint32_t len;   /* of both together: another length means that one of them has merged since */
    int32_t id;     /* token that they become */
} merge_candidate;

typedef struct merge_work {
    merge_symbol *symbols;
    size_t n, cap;
    merge_candidate *heap; /* smallest first; room for 2 * cap */
    size_t n_heap;
} merge_work;

/* Whether a and b, neighbours, may merge; then also order and token of the result. */
typedef bool merge_pair_fn(const void *ctx, const merge_symbol *a, const merge_symbol *b, uint32_t *out_order,
                           int32_t *out_id);

void merge_work_deinit(merge_work *w);
/* Starts a word of at most n symbols; false: no memory. */
bool merge_work_begin(merge_work *w, size_t n);
/* Appends a symbol; the one before it ends where it starts. */
void merge_work_add(merge_work *w, uint32_t start, uint32_t len, int32_t id);
/* Merges until no pair may. The symbols left are symbols[0] and its nexts. */
void merge_run(merge_work *w, merge_pair_fn *pair, const void *ctx);

#endif
