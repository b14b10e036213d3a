/* engine/sample/stage_top_k.c - top-k: keeps the k tokens with the greatest logits. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/stages.h"

void stage_top_k(const mr_sampler *s, candidates *c) {
    int32_t k = s->params.top_k;
    if (k == 0 || k >= c->n)
        return;
    candidates_top(c, k, false);
    uint64_t lowest = c->scratch->weights[0];
    candidates_keep(c, (cut){top_logit(lowest), top_id(lowest)});
}
