// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/stages.h"

void stage_penalty(const mr_sampler *s, candidates *c) {
    if (s->window_count == 0)
        return;
    const float p = s->params.repeat_penalty, *old = c->logits;
    float *changed = c->scratch->changed;
    memcpy(changed, old, (size_t)c->n * sizeof *changed);
    /* From the old logit each time, so that a token that comes twice is changed once. */
    for (int32_t i = 0; i < s->window_count; i++) {
        int32_t id = s->window[i];
        changed[id] = old[id] > 0.0f ? old[id] / p : old[id] * p;
    }
    c->logits = changed;
}
