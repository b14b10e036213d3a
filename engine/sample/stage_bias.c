/* What comes from outside of the chain: biases of tokens, and which tokens may come at all. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/stages.h"

void stage_bias(const mr_sampler *s, candidates *c) {
    if (s->params.n_biases == 0)
        return;
    float *changed = candidates_changed(c);
    for (int32_t i = 0; i < s->params.n_biases; i++) {
        float bias = s->params.biases[i], *logit = &changed[s->params.bias_ids[i]];
        *logit = bias == -INFINITY ? bias : *logit + bias; /* also where the logit is +inf */
    }
}

void stage_mask(const mr_sampler *s, candidates *c) {
    (void)s;
    if (!c->row->mask)
        return;
    float *changed = candidates_changed(c);
    for (int32_t start = 0; start < c->n; start += 64) {
        int32_t end = c->n - start < 64 ? c->n : start + 64;
        uint64_t allowed = c->row->mask[start / 64];
        if (allowed == UINT64_MAX)
            continue;
        for (int32_t i = start; i < end; i++, allowed >>= 1) { /* without a jump that nobody can predict */
            uint32_t keep = -(uint32_t)(allowed & 1);
            changed[i] = mr_bits_f32((mr_f32_bits(changed[i]) & keep) | (mr_f32_bits(-INFINITY) & ~keep));
        }
    }
}
