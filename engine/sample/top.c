/* engine/sample/top.c - whether a sampler needs no more of a row than its first tokens (engine/base/top.h). The answer
 * is wanted before the step is started, so it follows from the parameters and the length of the history alone.
 *
 * Why this is enough: let K tokens be in the list, and let the processors change at most m logits, all of them
 * downwards. At least K - m tokens of the list keep their logits. Each of them came before every token outside of the
 * list, and comes before it still, because no logit has risen. So the first K - m tokens after the changes are all in
 * the list. Greedy sampling needs the first one. Top-k needs the first k, and what follows top-k in the chain sees only
 * these. Everything that comes before top-k and reads all logits (a mask, top-n-sigma, Mirostat) needs all logits. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/processors.h"

static bool lowers_only(const mr_sampling_params *p) {
    bool lowers = p->repeat_penalty >= 1.0f && p->presence_penalty >= 0.0f && p->frequency_penalty >= 0.0f &&
                  p->dry_multiplier >= 0.0f;
    for (int32_t i = 0; i < p->n_biases && lowers; i++)
        lowers = p->biases[i] <= 0.0f;
    return lowers;
}

/* Returns how many tokens of the history have penalties, at most. */
static int32_t count_penalised(const mr_sampler *s) {
    const mr_sampling_params *p = &s->params;
    const int32_t lengths[] = {
        p->repeat_penalty != 1.0f ? history_count(s, p->repeat_last_n) : 0,
        p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f ? history_count(s, s->n_generated) : 0,
        history_count(s, s->dry_capacity),
    };
    int32_t longest = 0; /* all of them are ends of the history */
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        longest = lengths[i] > longest ? lengths[i] : longest;
    return longest;
}

/* Returns how many tokens the processors change, at most. */
static int32_t count_changed(const mr_sampler *s) {
    const mr_sampling_params *p = &s->params;
    int32_t n = p->n_biases + count_penalised(s);
    if (s->n_generated < p->min_tokens)
        n += p->n_late_ids;
    for (int32_t at = 0; at < p->n_bad_words; at += 1 + p->bad_words[at])
        n++;
    return n;
}

bool mr_sampler_can_use_top(const mr_sampler *s) {
    const mr_sampling_params *p = &s->params;
    bool is_greedy = p->temperature == 0.0f;
    if (!is_greedy && (p->top_k == 0 || p->top_k > MR_TOP_TOKENS || p->top_n_sigma != 0.0f || p->mirostat != 0))
        return false;
    return lowers_only(p) && count_changed(s) <= MR_TOP_TOKENS - (is_greedy ? 1 : p->top_k);
}
