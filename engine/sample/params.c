// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "engine/sample/sampler.h"

mr_sampling_params mr_sampling_params_default(void) {
    return (mr_sampling_params){
        .temperature = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .typical_p = 1.0f,
        .xtc_threshold = 0.1f,
        .repeat_penalty = 1.0f,
        .repeat_last_n = 64,
        .dry_base = 1.75f,
        .dry_allowed_length = 2,
        .dry_last_n = -1,
        .mirostat_tau = 5.0f,
        .mirostat_eta = 0.1f,
    };
}

typedef struct float_range {
    const char *name;
    float value, min, max;
    bool without_min;
    const char *hint;
} float_range;

/* Comparisons are written so that NaN fails them. */
static mr_status check_float(const float_range *r, mr_err *err) {
    if (r->value >= r->min && r->value <= r->max && !(r->without_min && r->value == r->min))
        return MR_OK;
    return mr_err_set(err, MR_E_INVALID, "%s %g is not in %c%g, %g]%s", r->name, (double)r->value,
                      r->without_min ? '(' : '[', (double)r->min, (double)r->max, r->hint ? r->hint : "");
}

static mr_status check_floats(const mr_sampling_params *p, mr_err *err) {
    const bool dry = p->dry_multiplier != 0.0f, mirostat = p->mirostat != 0;
    const float_range ranges[] = {
        {"temperature", p->temperature, 0, 100, false, NULL},
        {"top_p", p->top_p, 0, 1, false, NULL},
        {"min_p", p->min_p, 0, 1, false, NULL},
        {"typical_p", p->typical_p, 0, 1, false, NULL},
        {"top_n_sigma", p->top_n_sigma, 0, 1000, false, NULL},
        {"xtc_probability", p->xtc_probability, 0, 1, false, NULL},
        {"xtc_threshold", p->xtc_threshold, 0, 1, false, NULL},
        {"repeat_penalty", p->repeat_penalty, 0, 100, true, "; hint: 1 turns it off"},
        {"presence_penalty", p->presence_penalty, -100, 100, false, NULL},
        {"frequency_penalty", p->frequency_penalty, -100, 100, false, NULL},
        {"dry_multiplier", p->dry_multiplier, 0, 100, false, NULL},
        {"dry_base", dry ? p->dry_base : 1, 1, 100, false, NULL},
        {"mirostat_tau", mirostat ? p->mirostat_tau : 1, 0, 100, true, NULL},
        {"mirostat_eta", mirostat ? p->mirostat_eta : 1, 0, 10, false, NULL},
    };
    mr_status status = MR_OK;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && status == MR_OK; i++)
        status = check_float(&ranges[i], err);
    return status;
}

/* Each length fits what is left of the list. */
static mr_status check_bad_words(const mr_sampling_params *p, mr_err *err) {
    int32_t at = 0;
    if (p->n_bad_words < 0 || p->n_bad_words > MR_SAMPLER_MAX_BAD_WORDS)
        return mr_err_set(err, MR_E_INVALID, "a list of bad words of %d numbers; allowed are %d", p->n_bad_words,
                          MR_SAMPLER_MAX_BAD_WORDS);
    while (at < p->n_bad_words && p->bad_words[at] > 0 && p->bad_words[at] < p->n_bad_words - at)
        at += 1 + p->bad_words[at];
    if (at < p->n_bad_words)
        return mr_err_set(err, MR_E_INVALID, "a bad word of %d tokens, where %d follow", p->bad_words[at],
                          p->n_bad_words - at - 1);
    return MR_OK;
}

static mr_status check_lists(const mr_sampling_params *p, mr_err *err) {
    if (p->n_biases < 0 || p->n_biases > MR_SAMPLER_MAX_BIASES)
        return mr_err_set(err, MR_E_INVALID, "%d logit biases; allowed are %d", p->n_biases, MR_SAMPLER_MAX_BIASES);
    if (p->n_dry_breakers < 0 || p->n_dry_breakers > MR_SAMPLER_MAX_BREAKERS)
        return mr_err_set(err, MR_E_INVALID, "%d tokens break sequences of DRY; allowed are %d", p->n_dry_breakers,
                          MR_SAMPLER_MAX_BREAKERS);
    if (p->min_tokens < 0)
        return mr_err_set(err, MR_E_INVALID, "min_tokens %d is negative", p->min_tokens);
    if (p->n_late_ids < 0 || p->n_late_ids > MR_SAMPLER_MAX_LATE)
        return mr_err_set(err, MR_E_INVALID, "%d tokens that end a text; allowed are %d", p->n_late_ids,
                          MR_SAMPLER_MAX_LATE);
    for (int32_t i = 0; i < p->n_biases; i++)
        if (!(p->biases[i] < INFINITY))
            return mr_err_set(err, MR_E_INVALID, "the logit bias %g of token %d is no finite number or -inf",
                              (double)p->biases[i], p->bias_ids[i]);
    return check_bad_words(p, err);
}

static mr_status check_ids(const char *what, const int32_t *ids, int32_t n, int32_t n_vocab, mr_err *err) {
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return mr_err_set(err, MR_E_INVALID, "token id %d of %s is not in a vocabulary of %d", ids[i], what,
                              n_vocab);
    return MR_OK;
}

mr_status mr_sampling_params_check_ids(const mr_sampling_params *p, int32_t n_vocab, mr_err *err) {
    mr_status status = check_ids("the logit biases", p->bias_ids, p->n_biases, n_vocab, err);
    if (status == MR_OK)
        status = check_ids("the breakers of DRY", p->dry_breakers, p->n_dry_breakers, n_vocab, err);
    if (status == MR_OK)
        status = check_ids("the tokens that end a text", p->late_ids, p->n_late_ids, n_vocab, err);
    for (int32_t at = 0; at < p->n_bad_words && status == MR_OK; at += 1 + p->bad_words[at])
        status = check_ids("the bad words", p->bad_words + at + 1, p->bad_words[at], n_vocab, err);
    return status;
}

mr_status mr_sampling_params_check(const mr_sampling_params *p, mr_err *err) {
    if (p->top_k < 0)
        return mr_err_set(err, MR_E_INVALID, "top_k %d is negative; hint: 0 turns it off", p->top_k);
    if (p->repeat_last_n < -1)
        return mr_err_set(err, MR_E_INVALID, "repeat_last_n %d is below -1; hint: -1 is the whole context",
                          p->repeat_last_n);
    if (p->dry_last_n < -1)
        return mr_err_set(err, MR_E_INVALID, "dry_last_n %d is below -1; hint: -1 is the whole context", p->dry_last_n);
    if (p->dry_allowed_length < 0)
        return mr_err_set(err, MR_E_INVALID, "dry_allowed_length %d is negative", p->dry_allowed_length);
    if (p->mirostat < 0 || p->mirostat > 2)
        return mr_err_set(err, MR_E_INVALID, "mirostat %d is not 0, 1 or 2", p->mirostat);
    mr_status status = check_floats(p, err);
    return status == MR_OK ? check_lists(p, err) : status;
}
