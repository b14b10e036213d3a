/* engine/sample/penalties.c - lowers the logits of tokens that occur in the history: repetition, presence and
 * frequency. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/processors.h"

void process_penalty(const mr_sampler *s, candidates *c) {
    const float p = s->params.repeat_penalty;
    int32_t n = history_count(s, s->params.repeat_last_n), *seen = c->scratch->counts;
    if (p == 1.0f || n == 0)
        return;
    float *changed = candidates_changed(c);
    for (int32_t i = 0; i < n; i++) {
        int32_t id = history_id(s, i), at = candidates_find(c, id);
        if (seen[id]++ == 0 && at >= 0) /* a token that occurs twice is changed once */
            changed[at] = changed[at] > 0.0f ? changed[at] / p : changed[at] * p;
    }
    for (int32_t i = 0; i < n; i++)
        seen[history_id(s, i)] = 0;
}

void process_presence(const mr_sampler *s, candidates *c) {
    const float presence = s->params.presence_penalty, frequency = s->params.frequency_penalty;
    int32_t n = history_count(s, s->n_generated), *counts = c->scratch->counts;
    if ((presence == 0.0f && frequency == 0.0f) || n == 0)
        return;
    float *changed = candidates_changed(c);
    for (int32_t i = 0; i < n; i++)
        counts[history_id(s, i)]++;
    for (int32_t i = 0; i < n; i++) {
        int32_t id = history_id(s, i), at = candidates_find(c, id);
        if (counts[id] > 0 && at >= 0)
            changed[at] -= (float)counts[id] * frequency + presence;
        counts[id] = 0;
    }
}
