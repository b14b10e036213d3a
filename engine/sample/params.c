/* engine/sample/params.c - defaults and ranges of the sampling parameters. Parameters from clients are checked here
 * once, so that the logits processors need no checks. */
// SPDX-License-Identifier: Apache-2.0
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "engine/sample/sampler.h"

#define ABOVE_0 FLT_MIN

mr_sampling_params mr_sampling_params_default(void) {
    return (mr_sampling_params){
#define MR_SAMPLING(type, name, option, value, ...) .name = value,
#include "engine/sample/params.def"
#undef MR_SAMPLING
    };
}

typedef struct range {
    const char *name;
    double value, low, high;
    bool is_whole, applies;
    const char *hint;
} range;

/* The comparison is written so that NaN fails it. */
static mr_status check_range(const range *r, mr_err *err) {
    char text[100];
    if (!r->applies || (r->value >= r->low && r->value <= r->high))
        return MR_OK;
    if (r->is_whole)
        snprintf(text, sizeof text, "%s %.0f is not in [%.0f, %.0f]", r->name, r->value, r->low, r->high);
    else if (r->low == (double)ABOVE_0)
        snprintf(text, sizeof text, "%s %g is not in (0, %g]", r->name, r->value, r->high);
    else
        snprintf(text, sizeof text, "%s %g is not in [%g, %g]", r->name, r->value, r->low, r->high);
    return r->hint ? mr_err_set(err, MR_E_INVALID, "%s; hint: %s", text, r->hint)
                   : mr_err_set(err, MR_E_INVALID, "%s", text);
}

static mr_status check_numbers(const mr_sampling_params *p, mr_err *err) {
    const range ranges[] = {
#define MR_SAMPLING(type, name, option, value, low, high, applies, hint)                                               \
    {#name, (double)p->name, (double)(low), (double)(high), _Generic((type)0, int32_t : true, float : false), applies, \
     hint},
#include "engine/sample/params.def"
#undef MR_SAMPLING
    };
    mr_status status = MR_OK;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && status == MR_OK; i++)
        status = check_range(&ranges[i], err);
    return status;
}

/* Checks that each length fits into the rest of the list. */
static mr_status check_bad_words(const mr_sampling_params *p, mr_err *err) {
    int32_t at = 0;
    if (p->n_bad_words < 0 || p->n_bad_words > MR_SAMPLER_MAX_BAD_WORDS)
        return mr_err_set(err, MR_E_INVALID, "a list of bad words of %d numbers; allowed are %d", p->n_bad_words,
                          MR_SAMPLER_MAX_BAD_WORDS);
    while (at < p->n_bad_words && p->bad_words[at] > 0 && p->bad_words[at] < p->n_bad_words - at)
        at += 1 + p->bad_words[at];
    if (at < p->n_bad_words)
        return mr_err_set(err, MR_E_INVALID, "a bad word should have %d tokens, but %d follow", p->bad_words[at],
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
    mr_status status = check_numbers(p, err);
    return status == MR_OK ? check_lists(p, err) : status;
}
