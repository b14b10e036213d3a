// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/candidates.h"

float candidates_max(const float *logits, int32_t n, int32_t *out_id) {
    float best = -INFINITY;
    int32_t id = 0;
    bool nan = false;
    for (int32_t start = 0; start < n; start += SAMPLE_BLOCK) {
        int32_t end = n - start < SAMPLE_BLOCK ? n : start + SAMPLE_BLOCK;
        if (end - start == SAMPLE_BLOCK && !block_exceeds(logits + start, best))
            continue;
        for (int32_t i = start; i < end; i++) {
            nan |= logits[i] != logits[i];
            if (logits[i] > best) {
                best = logits[i];
                id = i;
            }
        }
    }
    *out_id = nan ? -1 : id;
    return best;
}

void candidates_keep(candidates *c, cut last) {
    float *logits = c->scratch->logits;
    int32_t *ids = c->scratch->ids, n = 0;
    for (int32_t start = 0; start < c->n; start += SAMPLE_BLOCK) {
        int32_t end = c->n - start < SAMPLE_BLOCK ? c->n : start + SAMPLE_BLOCK;
        if (end - start == SAMPLE_BLOCK && !block_reaches(c->logits + start, last.logit))
            continue;
        /* Packing may be in place: what is written lies never beyond what is read. */
        for (int32_t i = start; i < end; i++) {
            float logit = c->logits[i];
            int32_t id = candidates_id(c, i);
            ids[n] = id;
            logits[n] = logit;
            n += (logit > last.logit) | ((logit == last.logit) & (id <= last.last_id));
        }
    }
    c->n = n;
    c->logits = logits;
    c->ids = ids;
}
