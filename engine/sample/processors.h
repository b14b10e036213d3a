/* engine/sample/processors.h - internal: the sampler object and the logits processors of its chain. sampler.c has their
 * order. A processor that the parameters turn off returns at once.
 * Threads: caller serialises. Errors: none; processors allocate nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_SAMPLE_PROCESSORS_H
#define MR_ENGINE_SAMPLE_PROCESSORS_H

#include "engine/sample/candidates.h"

#define SAMPLE_LN2 0.69314718055994530942

enum { SAMPLE_BREAKER = 1 << 30 }; /* added to the ids of breakers in the history */

struct mr_sampler {
    int32_t n_vocab;
    uint32_t choice;
    mr_sampling_params params; /* the lists in params point into lists */
    double log_min_p;          /* set if min_p > 0 */
    int32_t *lists;            /* biases, bad words, then breakers and late ids, these two sorted */
    /* Mirostat's bound: the current one, and the one after the id that was sampled last is accepted. */
    double mu, next_mu;
    /* The last tokens of the history, for the penalties. A ring buffer. */
    /* [window_capacity] ids. With DRY, SAMPLE_BREAKER is added to the breakers. */
    int32_t *window;
    int32_t window_count; /* <= window_capacity */
    int32_t window_next;  /* index of the next id */
    int32_t window_capacity;
    int32_t n_generated; /* how many ids at the end of the history were generated */
    int32_t dry_capacity;
    int32_t *dry_lengths; /* [dry_capacity] */
};

/* For qsort and bsearch. */
static inline int compare_ids(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Returns entry i of the history, counted from its end: 0 is the last one. */
static inline int32_t history_entry(const mr_sampler *s, int32_t i) {
    int32_t at = s->window_next - 1 - i;
    return s->window[at < 0 ? at + s->window_capacity : at];
}
static inline int32_t history_id(const mr_sampler *s, int32_t i) {
    return history_entry(s, i) & ~SAMPLE_BREAKER;
}
/* Returns how many of the last n entries there are; -1 for all entries. */
static inline int32_t history_count(const mr_sampler *s, int32_t n) {
    return n < 0 || n > s->window_count ? s->window_count : n;
}

/* Processors that change logits. They get all tokens (c->ids is NULL) or the first ones of a row (mr_top; no mask), and
 * max_logit is not set yet. */
void process_bias(const mr_sampler *s, candidates *c);
void process_mask(const mr_sampler *s, candidates *c);
void process_late(const mr_sampler *s, candidates *c);
void process_bad_words(const mr_sampler *s, candidates *c);
void process_penalty(const mr_sampler *s, candidates *c);
void process_presence(const mr_sampler *s, candidates *c);
void process_dry(const mr_sampler *s, candidates *c);

/* Processors that narrow the candidates. They keep at least one candidate. */
void process_top_n_sigma(const mr_sampler *s, candidates *c);
void process_top_k(const mr_sampler *s, candidates *c);
void process_typical(const mr_sampler *s, candidates *c);
void process_top_p(const mr_sampler *s, candidates *c);
void process_min_p(const mr_sampler *s, candidates *c);
void process_xtc(const mr_sampler *s, candidates *c);
/* Narrows the candidates by Mirostat, with the current mu. */
void process_mirostat(const mr_sampler *s, candidates *c);

#endif
