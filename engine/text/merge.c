/* engine/text/merge.c - merges the symbols of a word in the order of a heap of candidate pairs. Candidates that a merge
 * makes invalid stay in the heap and are skipped when they come up. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/merge.h"

#include "engine/base/mem.h"

enum { SMALL_WORD = 256 }; /* room for this many symbols is allocated at least */

void merge_work_deinit(merge_work *w) {
    mr_free(w->symbols);
    mr_free(w->heap);
    *w = (merge_work){0};
}

bool merge_work_begin(merge_work *w, size_t n) {
    w->n = w->n_heap = 0;
    if (n <= w->cap)
        return true;
    size_t cap = n < SMALL_WORD ? SMALL_WORD : n + n / 8;
    /* Old contents are not needed, so the arrays are allocated anew instead of being grown. */
    merge_work_deinit(w);
    w->symbols = mr_alloc_array(cap, sizeof *w->symbols);
    /* At first there are n - 1 pairs. A merge removes one and adds at most two, and there are at most n - 1 merges. */
    w->heap = mr_alloc_array(cap * 2, sizeof *w->heap);
    if (!w->symbols || !w->heap) {
        merge_work_deinit(w);
        return false;
    }
    w->cap = cap;
    return true;
}

void merge_work_add(merge_work *w, uint32_t start, uint32_t len, int32_t id) {
    int32_t i = (int32_t)w->n++;
    w->symbols[i] = (merge_symbol){.start = start, .len = len, .prev = i - 1, .next = -1, .id = id};
    if (i > 0)
        w->symbols[i - 1].next = i;
}

static inline uint64_t rank_of(const merge_candidate *c) {
    return (uint64_t)c->order << 32 | (uint32_t)c->left;
}

/* A binary heap. A heap with four children for each node was measured and is no faster on long words. */
static void heap_push(merge_work *w, merge_candidate c) {
    size_t i = w->n_heap++;
    uint64_t rank = rank_of(&c);
    while (i > 0) {
        size_t up = (i - 1) / 2;
        if (rank_of(&w->heap[up]) <= rank)
            break;
        w->heap[i] = w->heap[up];
        i = up;
    }
    w->heap[i] = c;
}

static merge_candidate heap_pop(merge_work *w) {
    merge_candidate top = w->heap[0], last = w->heap[--w->n_heap];
    uint64_t rank = rank_of(&last);
    size_t i = 0, n = w->n_heap;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && rank_of(&w->heap[child + 1]) < rank_of(&w->heap[child]))
            child++;
        if (rank_of(&w->heap[child]) >= rank)
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* Adds the pair of symbol left and the next symbol to the heap, if the pair may merge. */
static void consider(merge_work *w, int32_t left, merge_pair_fn *pair, const void *ctx) {
    if (left < 0 || w->symbols[left].next < 0)
        return;
    const merge_symbol *a = &w->symbols[left], *b = &w->symbols[a->next];
    merge_candidate c = {.left = left, .len = a->len + b->len};
    if (pair(ctx, a, b, &c.order, &c.id))
        heap_push(w, c);
}

void merge_run(merge_work *w, merge_pair_fn *pair, const void *ctx) {
    for (size_t i = 0; i + 1 < w->n; i++)
        consider(w, (int32_t)i, pair, ctx);
    while (w->n_heap > 0) {
        merge_candidate c = heap_pop(w);
        merge_symbol *a = &w->symbols[c.left];
        if (a->len == 0 || a->next < 0)
            continue;
        merge_symbol *b = &w->symbols[a->next];
        if (a->len + b->len != c.len)
            continue;
        a->len = c.len;
        a->id = c.id;
        a->next = b->next;
        if (b->next >= 0)
            w->symbols[b->next].prev = c.left;
        b->len = 0;
        consider(w, a->prev, pair, ctx);
        consider(w, c.left, pair, ctx);
    }
}
