/* engine/sample/candidates.c - finds and keeps the best candidates without sorting them: the highest one, the k
 * highest, or as many as reach a given mass. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/candidates.h"

float candidates_max(const float *logits, int32_t n, int32_t *out_id) {
    float best = -INFINITY;
    int32_t id = 0;
    bool nan = false;
    for (int32_t start = 0; start < n; start += SAMPLE_BLOCK) {
        int32_t end = n - start < SAMPLE_BLOCK ? n : start + SAMPLE_BLOCK;
        if (end - start == SAMPLE_BLOCK && !block_exceeds(logits + start, best))
            continue;
        for (int32_t i = start; i < end; i++) {
            nan |= logits[i] != logits[i];
            if (logits[i] > best) {
                best = logits[i];
                id = i;
            }
        }
    }
    *out_id = nan ? -1 : id;
    return best;
}

static void keep(candidates *c, const float *scores, cut last) {
    float *logits = c->scratch->logits;
    int32_t *ids = c->scratch->ids, n = 0;
    for (int32_t start = 0; start < c->n; start += SAMPLE_BLOCK) {
        int32_t end = c->n - start < SAMPLE_BLOCK ? c->n : start + SAMPLE_BLOCK;
        if (end - start == SAMPLE_BLOCK && !block_reaches(scores + start, last.logit))
            continue;
        /* Packing may be in place: no entry is written beyond the entry that is read. */
        for (int32_t i = start; i < end; i++) {
            float score = scores[i], logit = c->logits[i];
            int32_t id = candidates_id(c, i);
            ids[n] = id;
            logits[n] = logit;
            n += (score > last.logit) | ((score == last.logit) & (id <= last.last_id));
        }
    }
    c->n = n;
    c->logits = logits;
    c->ids = ids;
}

void candidates_keep(candidates *c, cut last) {
    keep(c, c->logits, last);
}

void candidates_keep_by(candidates *c, const float *scores, cut last) {
    int32_t best;
    keep(c, scores, last);
    c->max_logit = candidates_max(c->logits, c->n, &best);
}

float *candidates_changed(candidates *c) {
    float *changed = c->scratch->changed;
    if (c->logits != changed)
        memcpy(changed, c->logits, (size_t)c->n * sizeof *changed);
    c->logits = changed;
    return changed;
}

/* --- The cut ----------------------------------------------------------------------------------------------------- */

/* A radix selection over the bits of the scores, which adds up the masses of the tokens instead of counting them. It
 * takes three passes for any distribution, and needs no sorting. */

/* Adds up the masses of the candidates whose key has the prefix (the bits above shift + n_bits), one sum for each value
 * of the next n_bits. */
static void bins_fill(const candidates *c, const float *scores, uint32_t prefix, int shift, int n_bits) {
    uint64_t *bins = c->scratch->bins;
    const uint64_t *weights = c->scratch->weights;
    memset(bins, 0, sizeof *bins << n_bits);
    uint32_t mask = (UINT32_C(1) << n_bits) - 1;
    uint32_t prefix_mask = (uint32_t)(UINT64_C(0xffffffff) << (shift + n_bits));
    for (int32_t i = 0; i < c->n; i++) {
        uint32_t key = mr_logit_key(scores[i]);
        if (((key ^ prefix) & prefix_mask) == 0)
            bins[key >> shift & mask] += weights[i];
    }
}

cut candidates_cut(const candidates *c, const float *scores, uint64_t target) {
    static const struct { int shift, n_bits; } levels[] = {{21, 11}, {10, 11}, {0, 10}};
    uint32_t key = 0;
    for (int l = 0; l < 3; l++) {
        bins_fill(c, scores, key, levels[l].shift, levels[l].n_bits);
        uint32_t bin = (UINT32_C(1) << levels[l].n_bits) - 1;
        for (; c->scratch->bins[bin] < target; bin--)
            target -= c->scratch->bins[bin];
        key |= bin << levels[l].shift;
    }
    /* target is now the mass that the tokens with exactly this score must add, taken by rising id. */
    for (int32_t i = 0;; i++) {
        if (mr_logit_key(scores[i]) != key)
            continue;
        if (c->scratch->weights[i] >= target)
            return (cut){mr_key_logit(key), candidates_id(c, i)};
        target -= c->scratch->weights[i];
    }
}

uint64_t candidates_target(double share, uint64_t total) {
    double wanted = share * (double)total;
    uint64_t target = (uint64_t)wanted;
    target += (double)target < wanted || target == 0;
    return target < total ? target : total;
}

/* --- The highest: one pass, in which most blocks are below the root of the heap ---------------------------------- */

static uint64_t top_entry(float logit, int32_t id) {
    return (uint64_t)mr_logit_key(logit) << 32 | (uint32_t)~id;
}

/* Moves the entry at a node down to its place. */
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

void candidates_top(const candidates *c, int32_t k, bool sorted) {
    uint64_t *heap = c->scratch->weights;
    for (int32_t i = 0; i < k; i++)
        heap[i] = top_entry(c->logits[i], candidates_id(c, i));
    for (int32_t i = k / 2 - 1; i >= 0; i--)
        heap_sink(heap, k, i);
    for (int32_t start = k; start < c->n; start += SAMPLE_BLOCK) {
        int32_t end = c->n - start < SAMPLE_BLOCK ? c->n : start + SAMPLE_BLOCK;
        if (end - start == SAMPLE_BLOCK && !block_exceeds(c->logits + start, top_logit(heap[0])))
            continue;
        for (int32_t i = start; i < end; i++) {
            uint64_t entry = top_entry(c->logits[i], candidates_id(c, i));
            if (entry > heap[0]) {
                heap[0] = entry;
                heap_sink(heap, k, 0);
            }
        }
    }
    for (int32_t n = k - 1; sorted && n > 0; n--) { /* the lowest goes behind the rest of the heap */
        uint64_t lowest = heap[0];
        heap[0] = heap[n];
        heap[n] = lowest;
        heap_sink(heap, n, 0);
    }
}
