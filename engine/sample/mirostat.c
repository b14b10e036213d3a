/* engine/sample/mirostat.c - Mirostat: keeps the tokens whose surprise, -log2 p, is at most mu. Version 1 estimates the
 * number of these tokens from the exponent of Zipf's law. Version 2 computes the surprise of each token. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/processors.h"

enum { N_FITTED = 100 };                /* tokens that the exponent is estimated from */
static const double MAX_EXPONENT = 100; /* upper bound of the estimate */

/* Estimates the exponent: the least-squares slope of log p over log rank, from the differences of neighbours. Returns 0
 * if the probabilities do not fall. */
static double zipf_exponent(const mr_sampler *s, const candidates *c) {
    int32_t n = c->n < N_FITTED ? c->n : N_FITTED;
    double sum_tb = 0, sum_tt = 0;
    candidates_top(c, n, true);
    for (int32_t i = 0; i + 1 < n; i++) {
        float a = top_logit(c->scratch->weights[i]), b = top_logit(c->scratch->weights[i + 1]);
        if (b == -INFINITY)
            break;
        double t = mr_log((double)(i + 2) / (double)(i + 1));
        sum_tb += t * (((double)a - (double)b) / (double)s->params.temperature);
        sum_tt += t * t;
    }
    double exponent = sum_tt > 0 ? sum_tb / sum_tt : 0;
    return exponent < MAX_EXPONENT ? exponent : MAX_EXPONENT;
}

/* Returns k = (e * 2^mu / (1 - N^-e))^(1 / exponent) with e = exponent - 1, computed by its logarithm. */
static int32_t tokens_for_mu(const mr_sampler *s, const candidates *c) {
    double exponent = zipf_exponent(s, c), log_n = mr_log(s->n_vocab), e = exponent - 1;
    if (exponent <= 0)
        return c->n;
    double ratio = fabs(e) < 1e-9 ? 1 / log_n : e / (1 - mr_exp(-e * log_n)); /* the limit for e = 0 */
    double log_k = (mr_log(ratio) + s->mu * SAMPLE_LN2) / exponent;
    if (log_k >= mr_log(c->n))
        return c->n;
    return log_k > 0 ? (int32_t)mr_exp(log_k) : 1;
}

static void keep_by_zipf(const mr_sampler *s, candidates *c) {
    int32_t k = tokens_for_mu(s, c);
    if (k >= c->n)
        return;
    candidates_top(c, k, false);
    uint64_t lowest = c->scratch->weights[0];
    candidates_keep(c, (cut){top_logit(lowest), top_id(lowest)});
}

static void keep_by_surprise(const mr_sampler *s, candidates *c) {
    const double best = 0x1p40; /* the weight of the highest logit, which is always kept */
    float *scores = c->scratch->scores;
    uint64_t total = c->scratch->weights_of(c->logits, c->n, c->max_logit, s->params.temperature, c->scratch->weights);
    double lowest = (double)total * mr_exp(-s->mu * SAMPLE_LN2);
    lowest = lowest < best ? lowest : best;
    for (int32_t i = 0; i < c->n; i++)
        scores[i] = (double)c->scratch->weights[i] >= lowest ? 1.0f : 0.0f;
    candidates_keep_by(c, scores, (cut){1.0f, INT32_MAX});
}

void process_mirostat(const mr_sampler *s, candidates *c) {
    if (c->n == 1 || c->max_logit == INFINITY)
        return;
    if (s->params.mirostat == 1)
        keep_by_zipf(s, c);
    else
        keep_by_surprise(s, c);
}
