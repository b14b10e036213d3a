/* engine/sample/candidates.h - internal: the tokens that may still be chosen.
 * A processor that narrows them keeps a beginning of an order: falling logit, or falling score of its own, ties by
 * rising id. So it finds a cut in that order, and nothing is ever sorted. The candidates themselves stay in id order.
 * Threads: caller serialises. Errors: none; nothing is allocated after create. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_SAMPLE_CANDIDATES_H
#define MR_ENGINE_SAMPLE_CANDIDATES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/fmath.h"
#include "engine/sample/sampler.h"
#include "engine/sample/weights.h"

enum {
    SAMPLE_BLOCK = 32,       /* logits that are looked at together: most blocks hold nothing of interest */
    SAMPLE_N_BINS = 1 << 11, /* of the histogram of candidates_cut */
    SAMPLE_LANES = 8         /* sums of doubles over candidates are of lanes: candidate i goes to i % 8 */
};

struct mr_sampler_scratch {
    int32_t n_vocab;
    weights_fn weights_of; /* the fastest for this machine; all give the same */
    float *changed;        /* [n_vocab] logits after the processors that change them */
    float *logits;         /* [n_vocab] of the candidates, once they are packed */
    int32_t *ids;          /* [n_vocab] of the candidates, once they are packed */
    uint64_t *weights;     /* [n_vocab] of the candidates; the heap of candidates_top */
    float *scores;         /* [n_vocab] of the candidates, where their order is not that of logits */
    int32_t *counts;       /* [n_vocab] of tokens; all zero between processors */
    uint64_t *bins;        /* [SAMPLE_N_BINS] */
};

typedef struct candidates {
    mr_sampler_scratch *scratch;
    int32_t n;
    const float *logits; /* [n]; the caller's, scratch->changed or scratch->logits */
    const int32_t *ids;  /* [n] rising, or NULL: candidate i is token i */
    float max_logit;     /* no NaN, not -inf */
    const mr_sampler_row *row;
} candidates;

static inline int32_t candidates_id(const candidates *c, int32_t i) {
    return c->ids ? c->ids[i] : i;
}

/* The last one that stays: what has a higher logit stays too, and what has this logit and no higher id. */
typedef struct cut {
    float logit;
    int32_t last_id;
} cut;

void candidates_keep(candidates *c, cut last);
/* The same by scores [n]; cut.logit is one of them. The highest logit is found anew. */
void candidates_keep_by(candidates *c, const float *scores, cut last);

/* The candidate at which the mass of those with the highest scores reaches target, in [1, the mass of all];
 * scratch->weights has the masses. */
cut candidates_cut(const candidates *c, const float *scores, uint64_t target);
/* The share of total, rounded up: a target of candidates_cut. */
uint64_t candidates_target(double share, uint64_t total);

/* Logits that may be changed, of all tokens: a copy at the first call. */
float *candidates_changed(candidates *c);

/* Puts the k highest (1 <= k <= n) into scratch->weights, as a heap whose root, [0], is the lowest; with sorted they
 * fall from [0] on. */
void candidates_top(const candidates *c, int32_t k, bool sorted);

/* The highest logit and the lowest id that has it; *out_id is -1 where a logit is NaN. */
float candidates_max(const float *logits, int32_t n, int32_t *out_id);

/* Whether one of SAMPLE_BLOCK logits is above limit, or at least limit; NaN is. (Sums over all of them, because that
 * becomes vector code.) */
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

/* A number that is ordered as the logit is; both zeros give the same one. */
static inline uint32_t logit_key(float logit) {
    uint32_t u = mr_f32_bits(logit + 0.0f);
    return u >> 31 ? ~u : u | UINT32_C(1) << 31;
}
static inline float key_logit(uint32_t key) {
    return mr_bits_f32(key >> 31 ? key ^ UINT32_C(1) << 31 : ~key);
}
/* What candidates_top leaves: one number that is higher for a higher logit, and with equal logits for a lower id. */
static inline float top_logit(uint64_t entry) {
    return key_logit((uint32_t)(entry >> 32));
}
static inline int32_t top_id(uint64_t entry) {
    return (int32_t) ~(uint32_t)entry;
}

#endif
