/* engine/sample/logprobs.c - log-probabilities of the chosen token and of the most likely ones, from the logits of the
 * model before any logits processor. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/thread.h"
#include "engine/sample/processors.h"

mr_status mr_logprobs_get(mr_sampler_scratch *scratch, const float *logits, int32_t n_vocab, int32_t id, int32_t n_top,
                          mr_logprobs *out) {
    MR_ASSERT(scratch->n_vocab >= n_vocab && id >= 0 && id < n_vocab);
    mr_thread_set_denormals_flushed();
    candidates c = {.scratch = scratch, .n = n_vocab, .logits = logits};
    int32_t best;
    float max = candidates_max(logits, n_vocab, &best);
    if (best < 0 || max == -INFINITY)
        return MR_E_NUMERICS;
    uint64_t total = scratch->weights_of(logits, n_vocab, max, 1.0f, scratch->weights);
    double log_total = mr_log((double)total) - 40 * SAMPLE_LN2;
    mr_logprobs result = {.n_top = n_top < MR_SAMPLER_MAX_TOP ? n_top : MR_SAMPLER_MAX_TOP};
    result.n_top = result.n_top < n_vocab ? result.n_top : n_vocab;
    if (result.n_top > 0)
        candidates_top(&c, result.n_top, true);
    for (int32_t i = -1; i < result.n_top; i++) {
        int32_t of = i < 0 ? id : top_id(scratch->weights[i]);
        double below = logits[of] == max ? 0.0 : (double)logits[of] - (double)max;
        float logprob = (float)(below - log_total);
        logprob = logprob < 0.0f ? logprob : 0.0f;
        if (i < 0) {
            result.logprob = logprob;
        } else {
            result.top_ids[i] = of;
            result.top[i] = logprob;
        }
    }
    *out = result;
    return MR_OK;
}
