/* engine/sample/sampler.c - the state of a sampler, the order of the logits processors, and the draw of a token. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/sampler.h"

#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/sample/processors.h"

typedef void (*processor)(const mr_sampler *s, candidates *c);

/* The chain. After the first part the highest logit is found. With temperature 0 the chain ends there. */
static const processor changing_processors[] = {process_bias,    process_mask,     process_late, process_bad_words,
                                                process_penalty, process_presence, process_dry};
static const processor narrowing_processors[] = {process_top_n_sigma, process_top_k, process_typical,
                                                 process_top_p,       process_min_p, process_xtc};

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
        s->scores = mr_alloc_array(n, sizeof *s->scores);
        s->counts = mr_alloc_array(n, sizeof *s->counts);
        s->bins = mr_alloc_array(SAMPLE_N_BINS, sizeof *s->bins);
    }
    if (!s || !s->changed || !s->logits || !s->ids || !s->weights || !s->scores || !s->counts || !s->bins) {
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
    mr_free(s->scores);
    mr_free(s->counts);
    mr_free(s->bins);
    mr_free(s);
}

/* Returns how many of the last n ids the history can have; -1 for all ids. */
static int32_t window_of(const mr_sampler_config *config, int32_t n) {
    return n < 0 || n > config->max_context ? config->max_context : n;
}

static int32_t max_of(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* Computes how many ids of the history the sampler needs, and how many of them DRY needs. */
static void size_window(mr_sampler *s, const mr_sampler_config *config) {
    const mr_sampling_params *p = &config->params;
    if (p->repeat_penalty != 1.0f)
        s->window_capacity = window_of(config, p->repeat_last_n);
    if (p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f)
        s->window_capacity = config->max_context;
    if (p->dry_multiplier != 0.0f)
        s->dry_capacity = window_of(config, p->dry_last_n);
    s->window_capacity = max_of(s->window_capacity, s->dry_capacity);
    for (int32_t at = 0; at < p->n_bad_words; at += 1 + p->bad_words[at])
        s->window_capacity = max_of(s->window_capacity, window_of(config, p->bad_words[at] - 1));
}

int32_t mr_sampler_n_history(const mr_sampling_params *params, int32_t n_generated, int32_t max_context) {
    const mr_sampler_config config = {.params = *params, .max_context = max_context};
    mr_sampler s = {.params = *params};
    size_window(&s, &config);
    /* Presence, frequency, bad words, Mirostat and grammars look at generated ids only. */
    bool repeats = params->repeat_penalty != 1.0f || params->dry_multiplier != 0.0f;
    return max_of(repeats ? s.window_capacity : 0, n_generated);
}

/* Copies n numbers to *at and moves *at behind them. */
static int32_t *take_list(int32_t **at, const void *from, int32_t n) {
    int32_t *to = *at;
    if (n > 0)
        memcpy(to, from, (size_t)n * sizeof *to);
    *at += n;
    return to;
}

/* The same, sorted by id. */
static int32_t *take_ids(int32_t **at, const int32_t *from, int32_t n) {
    int32_t *to = take_list(at, from, n);
    qsort(to, (size_t)n, sizeof *to, compare_ids);
    return to;
}

/* Checks the ids of the parameters' lists and copies the lists. */
static mr_status take_lists(mr_sampler *s, mr_err *err) {
    mr_sampling_params *p = &s->params;
    p->n_dry_breakers = s->dry_capacity > 0 ? p->n_dry_breakers : 0;
    mr_status status = mr_sampling_params_check_ids(p, s->n_vocab, err);
    if (status != MR_OK)
        return status;
    int32_t n = 2 * p->n_biases + p->n_bad_words + p->n_dry_breakers + p->n_late_ids;
    int32_t *at = s->lists = mr_alloc_array((size_t)n, sizeof *s->lists);
    if (!s->lists)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for lists of %d tokens", n);
    p->bias_ids = take_list(&at, p->bias_ids, p->n_biases);
    p->biases = (const float *)take_list(&at, p->biases, p->n_biases);
    p->bad_words = take_list(&at, p->bad_words, p->n_bad_words);
    p->dry_breakers = take_ids(&at, p->dry_breakers, p->n_dry_breakers);
    p->late_ids = take_ids(&at, p->late_ids, p->n_late_ids);
    return MR_OK;
}

static mr_status check_config(const mr_sampler_config *config, mr_err *err) {
    mr_status status = check_vocab(config->n_vocab, err);
    if (status == MR_OK)
        status = mr_sampling_params_check(&config->params, err);
    if (status != MR_OK)
        return status;
    if (config->max_context < 1 || config->n_generated < 0 || config->n_prompt < config->n_generated)
        return mr_err_set(err, MR_E_INVALID, "a context of %d tokens with %d of prompt, of which %d were generated",
                          config->max_context, config->n_prompt, config->n_generated);
    return MR_OK;
}

mr_status mr_sampler_create(const mr_sampler_config *config, mr_sampler **out_sampler, mr_err *err) {
    mr_status status = check_config(config, err);
    if (status != MR_OK)
        return status;
    mr_sampler *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a sampler");
    s->n_vocab = config->n_vocab;
    s->choice = config->choice;
    s->params = config->params;
    s->log_min_p = s->params.min_p > 0.0f ? mr_log((double)s->params.min_p) : 0.0;
    size_window(s, config);
    status = take_lists(s, err);
    s->window = mr_alloc_array((size_t)s->window_capacity, sizeof *s->window);
    s->dry_lengths = mr_alloc_array((size_t)s->dry_capacity, sizeof *s->dry_lengths);
    if (status == MR_OK && (!s->window || !s->dry_lengths))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a history of %d tokens", s->window_capacity);
    for (int32_t i = 0; i < config->n_prompt && status == MR_OK; i++)
        status = mr_sampler_accept(s, config->prompt_ids[i], err);
    s->n_generated = config->n_generated;
    s->mu = s->next_mu = config->n_generated > 0 ? config->mirostat_mu : 2 * (double)s->params.mirostat_tau;
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
    mr_free(s->dry_lengths);
    mr_free(s->lists);
    mr_free(s);
}

static bool is_breaker(const mr_sampler *s, int32_t id) {
    return s->params.n_dry_breakers > 0 &&
           bsearch(&id, s->params.dry_breakers, (size_t)s->params.n_dry_breakers, sizeof id, compare_ids) != NULL;
}

mr_status mr_sampler_accept(mr_sampler *s, int32_t id, mr_err *err) {
    if (id < 0 || id >= s->n_vocab)
        return mr_err_set(err, MR_E_INVALID, "token %d is not in a vocabulary of %d", id, s->n_vocab);
    s->n_generated++;
    s->mu = s->next_mu;
    if (s->window_capacity == 0)
        return MR_OK;
    s->window[s->window_next] = id | (is_breaker(s, id) ? SAMPLE_BREAKER : 0);
    s->window_next = s->window_next + 1 < s->window_capacity ? s->window_next + 1 : 0;
    s->window_count += s->window_count < s->window_capacity;
    return MR_OK;
}

double mr_sampler_mirostat_mu(const mr_sampler *s) {
    return s->mu;
}

/* Draws a token with the probability of its weight. The random number is a fraction of 64 bits. */
static int32_t draw(mr_sampler *s, const candidates *c) {
    const uint64_t *weights = c->scratch->weights;
    const mr_sampling_params *p = &s->params;
    uint64_t total = c->scratch->weights_of(c->logits, c->n, c->max_logit, p->temperature, c->scratch->weights);
    uint64_t random = mr_rng_u64(p->seed, s->choice, (uint64_t)c->row->position);
    uint64_t left = (uint64_t)((unsigned __int128)random * total >> 64);
    int32_t i = 0;
    for (; left >= weights[i]; i++)
        left -= weights[i];
    if (p->mirostat != 0) {
        double surprise = (mr_log((double)total) - mr_log((double)weights[i])) / SAMPLE_LN2;
        s->next_mu = s->mu - (double)p->mirostat_eta * (surprise - (double)p->mirostat_tau);
    }
    return candidates_id(c, i);
}

/* Runs the processors that change logits. Sets the highest logit and the id that has it, or returns an error. */
static mr_status change(const mr_sampler *s, candidates *c, int32_t *out_best, mr_err *err) {
    long long position = (long long)c->row->position;
    const float *original = c->logits;
    int32_t best;
    c->max_logit = candidates_max(c->logits, c->n, &best);
    if (best < 0 || c->n == 0)
        return mr_err_set(err, MR_E_NUMERICS, "a logit at position %lld is not a number", position);
    if (c->max_logit == -INFINITY)
        return mr_err_set(err, MR_E_NUMERICS, "no token is possible at position %lld: all logits are -inf", position);
    for (size_t i = 0; i < N_ITEMS(changing_processors); i++)
        changing_processors[i](s, c);
    if (c->logits != original)
        c->max_logit = candidates_max(c->logits, c->n, &best);
    if (c->max_logit == -INFINITY)
        return mr_err_set(err, MR_E_INVALID, "no token is possible at position %lld: mask and biases leave none",
                          position);
    *out_best = candidates_id(c, best);
    return MR_OK;
}

/* Makes all tokens, or the first ones of the row, candidates. */
static mr_status begin(const mr_sampler *s, const mr_sampler_row *row, candidates *c, mr_err *err) {
    if (!row->top) {
        c->n = s->n_vocab;
        c->logits = row->logits;
        return MR_OK;
    }
    if (row->mask || !mr_sampler_can_use_top(s))
        return mr_err_set(err, MR_E_INVALID, "position %lld needs the logits of all tokens, not of the first %d",
                          (long long)row->position, row->top->n);
    if (row->top->n < 0 || row->top->n > MR_TOP_TOKENS || row->top->n > s->n_vocab)
        return mr_err_set(err, MR_E_NUMERICS, "a device has found %d first tokens among %d", row->top->n, s->n_vocab);
    c->n = row->top->n;
    c->logits = row->top->logits;
    c->ids = row->top->ids;
    return MR_OK;
}

mr_status mr_sampler_sample(mr_sampler *s, mr_sampler_scratch *scratch, const mr_sampler_row *row, int32_t *out_id,
                            mr_err *err) {
    MR_ASSERT(scratch->n_vocab >= s->n_vocab);
    mr_thread_set_denormals_flushed();
    candidates c = {.scratch = scratch, .row = row};
    int32_t best_id = 0;
    mr_status status = begin(s, row, &c, err);
    if (status == MR_OK)
        status = change(s, &c, &best_id, err);
    if (status != MR_OK)
        return status;
    if (s->params.temperature == 0.0f) {
        *out_id = best_id;
        return MR_OK;
    }
    if (s->params.mirostat != 0)
        process_mirostat(s, &c);
    for (size_t i = 0; i < N_ITEMS(narrowing_processors) && s->params.mirostat == 0; i++)
        narrowing_processors[i](s, &c);
    *out_id = draw(s, &c);
    return MR_OK;
}
