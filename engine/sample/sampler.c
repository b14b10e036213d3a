// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/sampler.h"

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/sample/stages.h"

typedef void (*stage_fn)(const mr_sampler *s, candidates *c);

/* The chain. Between its two parts the highest logit is found; where the temperature is 0 it ends there. */
static const stage_fn changing_stages[] = {stage_penalty};
static const stage_fn narrowing_stages[] = {stage_top_k, stage_top_p, stage_min_p};

#define N_ITEMS(array) (sizeof(array) / sizeof *(array))

static mr_status check_vocab(int32_t n_vocab, mr_err *err) {
    if (n_vocab < 1 || n_vocab > MR_SAMPLER_MAX_VOCAB)
        return mr_err_set(err, MR_E_INVALID, "a vocabulary of %d tokens is not in [1, %d]", n_vocab,
                          MR_SAMPLER_MAX_VOCAB);
    return MR_OK;
}

mr_status mr_sampler_scratch_create(int32_t n_vocab, mr_sampler_scratch **out_scratch, mr_err *err) {
    mr_status status = check_vocab(n_vocab, err);
    if (status != MR_OK)
        return status;
    size_t n = (size_t)n_vocab;
    mr_sampler_scratch *s = mr_alloc(sizeof *s);
    if (s) {
        s->n_vocab = n_vocab;
        s->weights_of = weights_select();
        s->changed = mr_alloc_array(n, sizeof *s->changed);
        s->logits = mr_alloc_array(n, sizeof *s->logits);
        s->ids = mr_alloc_array(n, sizeof *s->ids);
        s->weights = mr_alloc_array(n, sizeof *s->weights);
        s->bins = mr_alloc_array(SAMPLE_N_BINS, sizeof *s->bins);
    }
    if (!s || !s->changed || !s->logits || !s->ids || !s->weights || !s->bins) {
        mr_sampler_scratch_destroy(s);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to sample from %d tokens", n_vocab);
    }
    *out_scratch = s;
    return MR_OK;
}

void mr_sampler_scratch_destroy(mr_sampler_scratch *s) {
    if (!s)
        return;
    mr_free(s->changed);
    mr_free(s->logits);
    mr_free(s->ids);
    mr_free(s->weights);
    mr_free(s->bins);
    mr_free(s);
}

/* How many ids of the history matter. */
static int32_t window_capacity(const mr_sampler_config *config) {
    const mr_sampling_params *p = &config->params;
    if (p->repeat_penalty == 1.0f)
        return 0;
    bool whole = p->repeat_last_n < 0 || p->repeat_last_n > config->max_context;
    return whole ? config->max_context : p->repeat_last_n;
}

mr_status mr_sampler_create(const mr_sampler_config *config, mr_sampler **out_sampler, mr_err *err) {
    mr_status status = check_vocab(config->n_vocab, err);
    if (status == MR_OK)
        status = mr_sampling_params_check(&config->params, err);
    if (status != MR_OK)
        return status;
    if (config->max_context < 1 || config->n_prompt < 0)
        return mr_err_set(err, MR_E_INVALID, "a context of %d tokens with %d of prompt", config->max_context,
                          config->n_prompt);
    mr_sampler *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a sampler");
    s->n_vocab = config->n_vocab;
    s->choice = config->choice;
    s->params = config->params;
    s->log_min_p = s->params.min_p > 0.0f ? mr_log((double)s->params.min_p) : 0.0;
    s->window_capacity = window_capacity(config);
    s->window = mr_alloc_array((size_t)s->window_capacity, sizeof *s->window);
    if (!s->window)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a history of %d tokens", s->window_capacity);
    for (int32_t i = 0; i < config->n_prompt && status == MR_OK; i++)
        status = mr_sampler_accept(s, config->prompt_ids[i], err);
    if (status != MR_OK)
        mr_sampler_destroy(s);
    else
        *out_sampler = s;
    return status;
}

void mr_sampler_destroy(mr_sampler *s) {
    if (!s)
        return;
    mr_free(s->window);
    mr_free(s);
}

mr_status mr_sampler_accept(mr_sampler *s, int32_t id, mr_err *err) {
    if (id < 0 || id >= s->n_vocab)
        return mr_err_set(err, MR_E_INVALID, "token %d is not in a vocabulary of %d", id, s->n_vocab);
    if (s->window_capacity == 0)
        return MR_OK;
    s->window[s->window_next] = id;
    s->window_next = s->window_next + 1 < s->window_capacity ? s->window_next + 1 : 0;
    s->window_count += s->window_count < s->window_capacity;
    return MR_OK;
}

/* A token with the probability of its weight. The random number is a fraction of 64 bits. */
static int32_t draw(const mr_sampler *s, const candidates *c, int64_t position) {
    const uint64_t *weights = c->scratch->weights;
    uint64_t total = c->scratch->weights_of(c->logits, c->n, c->max_logit, s->params.temperature, c->scratch->weights);
    uint64_t random = mr_rng_u64(s->params.seed, s->choice, (uint64_t)position);
    uint64_t left = (uint64_t)((unsigned __int128)random * total >> 64);
    int32_t i = 0;
    for (; left >= weights[i]; i++)
        left -= weights[i];
    return candidates_id(c, i);
}

mr_status mr_sampler_sample(const mr_sampler *s, mr_sampler_scratch *scratch, const float *logits, int64_t position,
                            int32_t *out_id, mr_err *err) {
    MR_ASSERT(scratch->n_vocab >= s->n_vocab);
    mr_thread_set_denormals_flushed();
    candidates c = {.scratch = scratch, .n = s->n_vocab, .logits = logits};
    for (size_t i = 0; i < N_ITEMS(changing_stages); i++)
        changing_stages[i](s, &c);
    int32_t best_id;
    c.max_logit = candidates_max(c.logits, c.n, &best_id);
    if (best_id < 0)
        return mr_err_set(err, MR_E_NUMERICS, "a logit at position %lld is not a number", (long long)position);
    if (c.max_logit == -INFINITY)
        return mr_err_set(err, MR_E_NUMERICS, "no token is possible at position %lld: all logits are -inf",
                          (long long)position);
    if (s->params.temperature == 0.0f) {
        *out_id = best_id;
        return MR_OK;
    }
    for (size_t i = 0; i < N_ITEMS(narrowing_stages); i++)
        narrowing_stages[i](s, &c);
    *out_id = draw(s, &c, position);
    return MR_OK;
}
