/* engine/sample/stage_xtc.c - XTC: sometimes removes all likely tokens but the least likely of them, so that texts
 * become more varied. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/rng.h"
#include "engine/sample/stages.h"

static const uint64_t STREAM = UINT64_C(1) << 32; /* beside those of the draws, which are numbered by choice */

void stage_xtc(const mr_sampler *s, candidates *c) {
    const uint64_t *weights = c->scratch->weights;
    float *scores = c->scratch->scores;
    int32_t last = -1;
    if (s->params.xtc_probability == 0.0f || s->params.xtc_threshold > 0.5f || c->n == 1)
        return;
    /* In [0, 1), so that 1 is always. */
    if (mr_rng_f32(s->params.seed, STREAM | s->choice, (uint64_t)c->row->position) >= s->params.xtc_probability)
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
