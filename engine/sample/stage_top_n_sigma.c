/* engine/sample/stage_top_n_sigma.c - top-n-sigma: keeps the tokens whose logit is at most n standard deviations below
 * the best one. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/stages.h"

static double sum_of_lanes(const double *lanes) {
    double sum = 0;
    for (int l = 0; l < SAMPLE_LANES; l++)
        sum += lanes[l];
    return sum;
}

/* The variance of the logits that are finite, n of them. Sums are of lanes by the place of the candidate, so they are
 * the same on every machine. */
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

void stage_top_n_sigma(const mr_sampler *s, candidates *c) {
    if (s->params.top_n_sigma == 0.0f || c->n == 1)
        return;
    float lowest = c->max_logit;
    if (c->max_logit < INFINITY)
        lowest = (float)((double)c->max_logit - (double)s->params.top_n_sigma * sqrt(variance_of(c)));
    candidates_keep(c, (cut){lowest, INT32_MAX});
}
