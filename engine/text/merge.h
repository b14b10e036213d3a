/* engine/text/merge.h - the merging of symbols that both kinds of vocabulary share. A word is a list of symbols, and
 * neighbours merge into one symbol. The pair with the lowest order merges first, and the leftmost of equal pairs. O(n
 * log n) with a heap of candidates.
 * Owns:    work memory, kept from word to word.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_MERGE_H
#define MR_ENGINE_TEXT_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct merge_symbol {
    uint32_t start, len; /* in the word; len 0: merged into a symbol on its left */
    int32_t prev, next;  /* -1 at the ends */
    int32_t id;          /* token, or -1 for a character that is no token */
} merge_symbol;

typedef struct merge_candidate {
    uint32_t order; /* lower merges first */
    int32_t left;   /* index of the left symbol */
    uint32_t len;   /* length of both symbols; if their length differs later, one of them has merged since */
    int32_t id;     /* token of the result */
} merge_candidate;

typedef struct merge_work {
    merge_symbol *symbols;
    size_t n, cap;
    merge_candidate *heap; /* smallest first; room for 2 * cap */
    size_t n_heap;
} merge_work;

/* Returns whether the neighbours a and b may merge; if so, writes the order and the token of the result. */
typedef bool merge_pair_fn(const void *ctx, const merge_symbol *a, const merge_symbol *b, uint32_t *out_order,
                           int32_t *out_id);

void merge_work_deinit(merge_work *w);
/* Starts a word of at most n symbols. Returns false without memory. */
bool merge_work_begin(merge_work *w, size_t n);
/* Appends a symbol, which starts where the symbol before ends. */
void merge_work_add(merge_work *w, uint32_t start, uint32_t len, int32_t id);
/* Merges until no pair may merge. The result is symbols[0] and the symbols that follow by next. */
void merge_run(merge_work *w, merge_pair_fn *pair, const void *ctx);

#endif
