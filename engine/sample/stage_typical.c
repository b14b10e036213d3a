/* engine/sample/stage_typical.c - typical sampling: keeps the tokens whose information is nearest to the entropy of the
 * distribution. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/stages.h"

/* How far a logit is below the best one; 0 for two infinities. */
static double below_max(const candidates *c, int32_t i) {
    return c->logits[i] == c->max_logit ? 0.0 : (double)c->max_logit - (double)c->logits[i];
}

/* -log p is below_max + log of the sum, and the entropy its mean, so the two differ by below_max less the mean of
 * below_max. */
void stage_typical(const mr_sampler *s, candidates *c) {
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
