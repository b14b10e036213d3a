/* The k highest by a heap whose root is the lowest of them: one pass, in which most blocks are below the root. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/stages.h"

/* One number that is higher for a higher logit, and with equal logits for a lower id. */
static uint64_t heap_entry(float logit, int32_t id) {
    return (uint64_t)logit_key(logit) << 32 | (uint32_t)~id;
}

/* Lets the entry at the root sink to its place. */
static void heap_sink(uint64_t *heap, int32_t n, int32_t at) {
    uint64_t entry = heap[at];
    for (int64_t child; (child = 2 * (int64_t)at + 1) < n; at = (int32_t)child) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (entry <= heap[child])
            break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

void stage_top_k(const mr_sampler *s, candidates *c) {
    int32_t k = s->params.top_k;
    if (k == 0 || k >= c->n)
        return;
    uint64_t *heap = c->scratch->weights;
    for (int32_t i = 0; i < k; i++)
        heap[i] = heap_entry(c->logits[i], candidates_id(c, i));
    for (int32_t i = k / 2 - 1; i >= 0; i--)
        heap_sink(heap, k, i);
    for (int32_t start = k; start < c->n; start += SAMPLE_BLOCK) {
        int32_t end = c->n - start < SAMPLE_BLOCK ? c->n : start + SAMPLE_BLOCK;
        if (end - start == SAMPLE_BLOCK && !block_exceeds(c->logits + start, key_logit((uint32_t)(heap[0] >> 32))))
            continue;
        for (int32_t i = start; i < end; i++) {
            uint64_t entry = heap_entry(c->logits[i], candidates_id(c, i));
            if (entry > heap[0]) {
                heap[0] = entry;
                heap_sink(heap, k, 0);
            }
        }
    }
    candidates_keep(c, (cut){key_logit((uint32_t)(heap[0] >> 32)), (int32_t) ~(uint32_t)heap[0]});
}
