/* engine/sample/processors.h - internal: the sampler object and the entries of its chain (sampler.c holds the order).
 * A logits processor that is off in the parameters returns at once.
 * Threads: caller serialises. Errors: none; processors allocate nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_SAMPLE_PROCESSORS_H
#define MR_ENGINE_SAMPLE_PROCESSORS_H

#include "engine/sample/candidates.h"

#define SAMPLE_LN2 0.69314718055994530942

enum { SAMPLE_BREAKER = 1 << 30 }; /* added to ids of the history */

struct mr_sampler {
    int32_t n_vocab;
    uint32_t choice;
    mr_sampling_params params; /* its lists point into lists */
    double log_min_p;          /* where min_p > 0 */
    int32_t *lists;            /* biases, bad words, then breakers and late ids by rising id */
    double mu, next_mu;        /* of Mirostat: now, and once the id that was sampled last is accepted */
    /* The last tokens of the history, for the penalties; a ring. */
    int32_t *window;      /* [window_capacity], ids; with SAMPLE_BREAKER where DRY is on and they are breakers */
    int32_t window_count; /* <= window_capacity */
    int32_t window_next;  /* where the next id goes */
    int32_t window_capacity;
    int32_t n_generated; /* of the history, the last ones */
    int32_t dry_capacity;
    int32_t *dry_lengths; /* [dry_capacity] */
};

/* For qsort and bsearch. */
static inline int compare_ids(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Entry i of the history from its end: 0 is the last one. */
static inline int32_t history_entry(const mr_sampler *s, int32_t i) {
    int32_t at = s->window_next - 1 - i;
    return s->window[at < 0 ? at + s->window_capacity : at];
}
static inline int32_t history_id(const mr_sampler *s, int32_t i) {
    return history_entry(s, i) & ~SAMPLE_BREAKER;
}
/* How many there are of the last n (-1: of all). */
static inline int32_t history_count(const mr_sampler *s, int32_t n) {
    return n < 0 || n > s->window_count ? s->window_count : n;
}

/* Processors that change logits see all tokens, c->ids being NULL, and no max_logit yet. */
void process_bias(const mr_sampler *s, candidates *c);
void process_mask(const mr_sampler *s, candidates *c);
void process_late(const mr_sampler *s, candidates *c);
void process_bad_words(const mr_sampler *s, candidates *c);
void process_penalty(const mr_sampler *s, candidates *c);
void process_presence(const mr_sampler *s, candidates *c);
void process_dry(const mr_sampler *s, candidates *c);

/* Processors that narrow the candidates; one stays at least. */
void process_top_n_sigma(const mr_sampler *s, candidates *c);
void process_top_k(const mr_sampler *s, candidates *c);
void process_typical(const mr_sampler *s, candidates *c);
void process_top_p(const mr_sampler *s, candidates *c);
void process_min_p(const mr_sampler *s, candidates *c);
void process_xtc(const mr_sampler *s, candidates *c);
/* Mirostat's, by the mu of now. */
void process_mirostat(const mr_sampler *s, candidates *c);

#endif
