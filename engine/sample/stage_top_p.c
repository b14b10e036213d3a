/* engine/sample/stage_top_p.c - top-p: keeps the most likely tokens that together reach the probability p. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/stages.h"

void stage_top_p(const mr_sampler *s, candidates *c) {
    if (s->params.top_p >= 1.0f || c->n == 1)
        return;
    uint64_t total = c->scratch->weights_of(c->logits, c->n, c->max_logit, 1.0f, c->scratch->weights);
    candidates_keep(c, candidates_cut(c, c->logits, candidates_target((double)s->params.top_p, total)));
}
