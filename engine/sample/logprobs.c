/* engine/sample/logprobs.c - log-probabilities of the chosen token and of the most likely ones, from the logits of the
 * model before any logits processor. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/thread.h"
#include "engine/sample/processors.h"

/* log p of a logit; log_total: the log of the sum of all weights, where that of max has weight 1. */
static float logprob_of(float logit, float max, double log_total) {
    double below = logit == max ? 0.0 : (double)logit - (double)max;
    float logprob = (float)(below - log_total);
    return logprob < 0.0f ? logprob : 0.0f;
}

/* Writes the log-probabilities, where total is the sum of the weights of the whole vocabulary. */
static mr_status write_logprobs(const candidates *c, uint64_t total, float logit, int32_t n_top, mr_logprobs *out) {
    double log_total = mr_log((double)total) - 40 * SAMPLE_LN2;
    mr_logprobs result = {.n_top = n_top < MR_SAMPLER_MAX_TOP ? n_top : MR_SAMPLER_MAX_TOP};
    result.n_top = result.n_top < c->n ? result.n_top : c->n;
    result.logprob = logprob_of(logit, c->max_logit, log_total);
    if (result.n_top > 0)
        candidates_top(c, result.n_top, true);
    for (int32_t i = 0; i < result.n_top; i++) {
        uint64_t entry = c->scratch->weights[i];
        result.top_ids[i] = top_id(entry);
        result.top[i] = logprob_of(top_logit(entry), c->max_logit, log_total);
    }
    *out = result;
    return MR_OK;
}

mr_status mr_logprobs_get(mr_sampler_scratch *scratch, const float *logits, int32_t n_vocab, int32_t id, int32_t n_top,
                          mr_logprobs *out) {
    MR_ASSERT(scratch->n_vocab >= n_vocab && id >= 0 && id < n_vocab);
    mr_thread_set_denormals_flushed();
    candidates c = {.scratch = scratch, .n = n_vocab, .logits = logits};
    int32_t best;
    c.max_logit = candidates_max(logits, n_vocab, &best);
    if (best < 0 || c.max_logit == -INFINITY)
        return MR_E_NUMERICS;
    uint64_t total = scratch->weights_of(logits, n_vocab, c.max_logit, 1.0f, scratch->weights);
    return write_logprobs(&c, total, logits[id], n_top, out);
}

mr_status mr_logprobs_get_top(mr_sampler_scratch *scratch, const mr_top *top, int32_t id, int32_t n_top,
                              mr_logprobs *out) {
    MR_ASSERT(scratch->n_vocab >= top->n);
    mr_thread_set_denormals_flushed();
    candidates c = {.scratch = scratch, .n = top->n, .logits = top->logits, .ids = top->ids};
    int32_t best;
    c.max_logit = candidates_max(top->logits, top->n, &best);
    if (c.max_logit == -INFINITY) /* also without candidates: a logit is NaN */
        return MR_E_NUMERICS;
    int32_t at = candidates_find(&c, id);
    if (at < 0)
        return MR_E_INVALID;
    return write_logprobs(&c, top->sum, top->logits[at], n_top, out);
}
