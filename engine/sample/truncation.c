/* engine/sample/truncation.c - the processors that narrow the candidates: top-n-sigma, top-k, typical, top-p, min-p and
 * XTC. The head of sampler.h says what each keeps. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/rng.h"
#include "engine/sample/processors.h"

static double sum_of_lanes(const double *lanes) {
    double sum = 0;
    for (int l = 0; l < SAMPLE_LANES; l++)
        sum += lanes[l];
    return sum;
}

/* Returns the variance of the finite logits. Sums have lanes by the index of the candidate, so they are the same on
 * every machine. */
static double variance_of(const candidates *c) {
    double sums[SAMPLE_LANES] = {0}, squares[SAMPLE_LANES] = {0};
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        bool is_possible = c->logits[i] > -INFINITY;
        n += is_possible;
        sums[i % SAMPLE_LANES] += is_possible ? (double)c->logits[i] : 0.0;
    }
    double mean = sum_of_lanes(sums) / n;
    for (int32_t i = 0; i < c->n; i++) {
        double d = c->logits[i] > -INFINITY ? (double)c->logits[i] - mean : 0.0;
        squares[i % SAMPLE_LANES] += d * d;
    }
    return sum_of_lanes(squares) / n;
}

void process_top_n_sigma(const mr_sampler *s, candidates *c) {
    if (s->params.top_n_sigma == 0.0f || c->n == 1)
        return;
    float lowest = c->max_logit;
    if (c->max_logit < INFINITY)
        lowest = (float)((double)c->max_logit - (double)s->params.top_n_sigma * sqrt(variance_of(c)));
    candidates_keep(c, (cut){lowest, INT32_MAX});
}

void process_top_k(const mr_sampler *s, candidates *c) {
    int32_t k = s->params.top_k;
    if (k == 0 || k >= c->n)
        return;
    candidates_top(c, k, false);
    uint64_t lowest = c->scratch->weights[0];
    candidates_keep(c, (cut){top_logit(lowest), top_id(lowest)});
}

/* Returns how far a logit is below the highest one; 0 for two infinities. */
static double below_max(const candidates *c, int32_t i) {
    return c->logits[i] == c->max_logit ? 0.0 : (double)c->max_logit - (double)c->logits[i];
}

/* -log p is below_max plus the log of the sum, and the entropy is the mean of -log p. Their difference is therefore
 * below_max minus the mean of below_max. */
void process_typical(const mr_sampler *s, candidates *c) {
    const uint64_t *weights = c->scratch->weights;
    float *scores = c->scratch->scores;
    double lanes[SAMPLE_LANES] = {0}, mean = 0;
    if (s->params.typical_p == 0.0f || s->params.typical_p >= 1.0f || c->n == 1)
        return;
    uint64_t total = c->scratch->weights_of(c->logits, c->n, c->max_logit, 1.0f, c->scratch->weights);
    for (int32_t i = 0; i < c->n; i++)
        lanes[i % SAMPLE_LANES] += weights[i] > 0 ? (double)weights[i] * below_max(c, i) : 0.0;
    for (int l = 0; l < SAMPLE_LANES; l++)
        mean += lanes[l];
    mean /= (double)total;
    for (int32_t i = 0; i < c->n; i++)
        scores[i] = (float)-fabs(below_max(c, i) - mean);
    candidates_keep_by(c, scores, candidates_cut(c, scores, candidates_target((double)s->params.typical_p, total)));
}

void process_top_p(const mr_sampler *s, candidates *c) {
    if (s->params.top_p >= 1.0f || c->n == 1)
        return;
    uint64_t total = c->scratch->weights_of(c->logits, c->n, c->max_logit, 1.0f, c->scratch->weights);
    candidates_keep(c, candidates_cut(c, c->logits, candidates_target((double)s->params.top_p, total)));
}

/* exp(l - max) >= min_p is l >= max + log(min_p), which is rounded once, to float. */
void process_min_p(const mr_sampler *s, candidates *c) {
    if (s->params.min_p > 0.0f)
        candidates_keep(c, (cut){(float)((double)c->max_logit + s->log_min_p), INT32_MAX});
}

/* A random stream of its own: the streams of the draws are numbered by choice. */
static const uint64_t XTC_STREAM = UINT64_C(1) << 32;

void process_xtc(const mr_sampler *s, candidates *c) {
    const uint64_t *weights = c->scratch->weights;
    float *scores = c->scratch->scores;
    int32_t last = -1;
    if (s->params.xtc_probability == 0.0f || s->params.xtc_threshold > 0.5f || c->n == 1)
        return;
    /* The random number is in [0, 1), so a probability of 1 always applies. */
    if (mr_rng_f32(s->params.seed, XTC_STREAM | s->choice, (uint64_t)c->row->position) >= s->params.xtc_probability)
        return;
    uint64_t total = c->scratch->weights_of(c->logits, c->n, c->max_logit, 1.0f, c->scratch->weights);
    uint64_t likely = candidates_target((double)s->params.xtc_threshold, total);
    for (int32_t i = 0; i < c->n; i++) { /* the last of the likely ones: the lowest logit, the highest id */
        if (weights[i] >= likely && (last < 0 || c->logits[i] <= c->logits[last]))
            last = i;
    }
    if (last < 0)
        return;
    for (int32_t i = 0; i < c->n; i++)
        scores[i] = weights[i] < likely || i == last ? 1.0f : 0.0f;
    candidates_keep_by(c, scores, (cut){1.0f, INT32_MAX});
}
