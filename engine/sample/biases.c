/* engine/sample/biases.c - favours or forbids tokens: logit biases, the mask of a grammar, tokens that end a text
 * before min_tokens, and tokens that would complete a bad word. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "engine/sample/processors.h"

static void forbid(const candidates *c, float *changed, int32_t id) {
    int32_t at = candidates_find(c, id);
    if (at >= 0)
        changed[at] = -INFINITY;
}

void process_bias(const mr_sampler *s, candidates *c) {
    if (s->params.n_biases == 0)
        return;
    float *changed = candidates_changed(c);
    for (int32_t i = 0; i < s->params.n_biases; i++) {
        int32_t at = candidates_find(c, s->params.bias_ids[i]);
        float bias = s->params.biases[i];
        if (at >= 0)
            changed[at] = bias == -INFINITY ? bias : changed[at] + bias; /* also if the logit is +inf */
    }
}

void process_mask(const mr_sampler *s, candidates *c) {
    (void)s;
    if (!c->row->mask)
        return;
    float *changed = candidates_changed(c);
    for (int32_t start = 0; start < c->n; start += 64) {
        int32_t end = c->n - start < 64 ? c->n : start + 64;
        uint64_t allowed = c->row->mask[start / 64];
        if (allowed == UINT64_MAX)
            continue;
        for (int32_t i = start; i < end; i++, allowed >>= 1) { /* no branch, because a CPU could not predict it */
            uint32_t keep = -(uint32_t)(allowed & 1);
            changed[i] = mr_bits_f32((mr_f32_bits(changed[i]) & keep) | (mr_f32_bits(-INFINITY) & ~keep));
        }
    }
}

/* Whether the mask allows a token that is not a late id. */
static bool allows_others(const mr_sampling_params *p, const uint64_t *mask, int32_t n_vocab) {
    for (int32_t start = 0; start < n_vocab; start += 64)
        for (uint64_t bits = mask[start / 64]; bits; bits &= bits - 1) {
            int32_t id = start + __builtin_ctzll(bits);
            if (id < n_vocab && !bsearch(&id, p->late_ids, (size_t)p->n_late_ids, sizeof id, compare_ids))
                return true;
        }
    return false;
}

void process_late(const mr_sampler *s, candidates *c) {
    const mr_sampling_params *p = &s->params;
    if (s->n_generated >= p->min_tokens || p->n_late_ids == 0)
        return;
    if (c->row->mask && !allows_others(p, c->row->mask, c->n))
        return; /* the text of the grammar is complete and cannot continue */
    float *changed = candidates_changed(c);
    for (int32_t i = 0; i < p->n_late_ids; i++)
        forbid(c, changed, p->late_ids[i]);
}

/* Whether the ids that were generated last are these n ids. */
static bool ends_in(const mr_sampler *s, const int32_t *ids, int32_t n) {
    if (n > history_count(s, s->n_generated))
        return false;
    for (int32_t i = 0; i < n; i++)
        if (history_id(s, i) != ids[n - 1 - i])
            return false;
    return true;
}

void process_bad_words(const mr_sampler *s, candidates *c) {
    const int32_t *word = s->params.bad_words, *end = word + s->params.n_bad_words;
    for (; word < end; word += 1 + *word)
        if (ends_in(s, word + 1, *word - 1))
            forbid(c, candidates_changed(c), word[*word]);
}
