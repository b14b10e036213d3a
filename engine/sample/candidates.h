/* engine/sample/candidates.h - internal: the tokens that may still be chosen.
 * A processor that narrows the candidates keeps the first ones of an order: by falling logit or by a falling score,
 * ties by rising id. The processor finds a cut in this order, and nothing is sorted. The candidates themselves stay in
 * the order of their ids.
 * Threads: caller serialises. Errors: none; nothing is allocated after create. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_SAMPLE_CANDIDATES_H
#define MR_ENGINE_SAMPLE_CANDIDATES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/top.h"
#include "engine/sample/sampler.h"
#include "engine/sample/weights.h"

enum {
    SAMPLE_BLOCK = 32,       /* logits that are compared together; most blocks are skipped */
    SAMPLE_N_BINS = 1 << 11, /* bins of the histogram of candidates_cut */
    /* A sum of doubles over candidates has this many lanes: candidate i is added to lane i % 8. */
    SAMPLE_LANES = 8
};

struct mr_sampler_scratch {
    int32_t n_vocab;
    weights_fn weights_of; /* the fastest version for this machine; all versions give the same bits */
    float *changed;        /* [n_vocab] logits after the processors that change them */
    float *logits;         /* [n_vocab] of the candidates, once they are packed */
    int32_t *ids;          /* [n_vocab] of the candidates, once they are packed */
    uint64_t *weights;     /* [n_vocab] of the candidates; the heap of candidates_top */
    float *scores;         /* [n_vocab] of the candidates, when they are ordered by a score */
    int32_t *counts;       /* [n_vocab] occurrences of each token; all zero between processors */
    uint64_t *bins;        /* [SAMPLE_N_BINS] */
};

typedef struct candidates {
    mr_sampler_scratch *scratch;
    int32_t n;
    const float *logits; /* [n]; memory of the caller, scratch->changed or scratch->logits */
    const int32_t *ids;  /* [n] rising, or NULL: candidate i is token i */
    float max_logit;     /* neither NaN nor -inf */
    const mr_sampler_row *row;
} candidates;

static inline int32_t candidates_id(const candidates *c, int32_t i) {
    return c->ids ? c->ids[i] : i;
}

/* The last candidate that is kept. Kept are all candidates with a higher logit, and those with this logit whose id is
 * at most last_id. */
typedef struct cut {
    float logit;
    int32_t last_id;
} cut;

void candidates_keep(candidates *c, cut last);
/* The same by scores [n]; cut.logit is then a score. The highest logit is found again. */
void candidates_keep_by(candidates *c, const float *scores, cut last);

/* Returns the candidate at which the mass of the highest scores reaches target, which is in [1, the mass of all].
 * scratch->weights has the masses. */
cut candidates_cut(const candidates *c, const float *scores, uint64_t target);
/* Returns the share of total, rounded up, as a target for candidates_cut. */
uint64_t candidates_target(double share, uint64_t total);

/* Returns logits of all candidates that may be changed. The first call makes the copy. */
float *candidates_changed(candidates *c);
/* Returns which candidate a token of the vocabulary is; -1 for none. */
static inline int32_t candidates_find(const candidates *c, int32_t id) {
    if (!c->ids)
        return id;
    int32_t first = 0, last = c->n; /* in [first, last), if it is there */
    while (last - first > 1) {
        int32_t middle = first + (last - first) / 2;
        if (c->ids[middle] <= id)
            first = middle;
        else
            last = middle;
    }
    return c->n > 0 && c->ids[first] == id ? first : -1;
}

/* Puts the k highest candidates (1 <= k <= n) into scratch->weights, as a heap with the lowest of them at [0]. With
 * sorted they are in falling order instead. */
void candidates_top(const candidates *c, int32_t k, bool sorted);

/* Returns the highest logit, and the lowest id that has it. *out_id is -1 if a logit is NaN. */
float candidates_max(const float *logits, int32_t n, int32_t *out_id);

/* Whether one of SAMPLE_BLOCK logits is above limit, or at least limit. NaN counts as above. The loops count all of
 * them, because compilers vectorise that. */
static inline bool block_exceeds(const float *x, float limit) {
    int n = 0;
    for (int l = 0; l < SAMPLE_BLOCK; l++)
        n += !(x[l] <= limit);
    return n > 0;
}
static inline bool block_reaches(const float *x, float limit) {
    int n = 0;
    for (int l = 0; l < SAMPLE_BLOCK; l++)
        n += !(x[l] < limit);
    return n > 0;
}

/* Entries of candidates_top: a number that is higher for a higher logit, and with equal logits for a lower id. */
static inline float top_logit(uint64_t entry) {
    return mr_key_logit((uint32_t)(entry >> 32));
}
static inline int32_t top_id(uint64_t entry) {
    return (int32_t) ~(uint32_t)entry;
}

#endif
