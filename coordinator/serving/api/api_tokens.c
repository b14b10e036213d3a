/* coordinator/serving/api/api_tokens.c - reads the fields that name tokens by their texts: logit_bias, bad_words and
 * dry_sequence_breakers. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/api/api_fields.h"
#include "coordinator/serving/api/api_request.h"
#include "coordinator/serving/wire/api_json.h"
#include "engine/base/mem.h"

static bool add_bias(const mr_api *a, api_request *r, int64_t id, float bias, mr_api_error *e) {
    if (!api_is_token(a, (double)id))
        return mr_api_error_set(e, 400, "invalid_value", "logit_bias", "logit_bias names %lld, which is no token id",
                                (long long)id);
    for (size_t i = 0; i < r->bias_ids.n; i++)
        if (r->bias_ids.ids[i] == id) {
            r->biases[i] = bias;
            return true;
        }
    if (r->bias_ids.n == MR_SAMPLER_MAX_BIASES)
        return mr_api_error_set(e, 400, "array_above_max_length", "logit_bias", "logit_bias has more than %d tokens",
                                MR_SAMPLER_MAX_BIASES);
    r->biases[r->bias_ids.n] = bias;
    return mr_token_buf_push(&r->bias_ids, (int32_t)id) || api_no_memory(e);
}

/* A number, or false, which means "never" as in llama-server. */
static bool read_bias(const json_t *value, float *out, mr_api_error *e) {
    double x = -(double)INFINITY;
    if (!json_is_false(value) && !api_field_number(value, "logit_bias", -100, 100, false, &x, e))
        return false;
    *out = (float)x;
    return true;
}

/* One key: a token id as OpenAI has it, or a text as llama-server has it. A text stands for all its tokens. */
static bool bias_of_text(const mr_api *a, api_request *r, mr_str key, float bias, mr_api_error *e) {
    char *end = NULL;
    long long id = strtoll(key.data, &end, 10);
    if (key.len > 0 && end == key.data + key.len)
        return add_bias(a, r, id, bias, e);
    mr_token_buf ids = {0};
    bool ok = api_encode(a, key, MR_ENCODE_PARSE_SPECIAL | MR_ENCODE_CONTINUES, &ids, e);
    for (size_t i = 0; i < ids.n && ok; i++)
        ok = add_bias(a, r, ids.ids[i], bias, e);
    mr_token_buf_deinit(&ids);
    return ok;
}

static bool bias_of_pair(const mr_api *a, api_request *r, const json_t *pair, mr_api_error *e) {
    const json_t *key = json_array_get(pair, 0);
    float bias = 0;
    if (json_array_size(pair) != 2 || (!json_is_integer(key) && !json_is_string(key)))
        return mr_api_error_set(e, 400, "invalid_type", "logit_bias",
                                "logit_bias is a list, and an element of it is not [id or text, bias]");
    if (!read_bias(json_array_get(pair, 1), &bias, e))
        return false;
    if (json_is_integer(key))
        return add_bias(a, r, json_integer_value(key), bias, e);
    return bias_of_text(a, r, (mr_str){json_string_value(key), json_string_length(key)}, bias, e);
}

bool api_read_biases(const mr_api *a, api_request *r, mr_api_error *e) {
    if (!r->logit_bias)
        return true;
    if (!json_is_object(r->logit_bias) && !json_is_array(r->logit_bias))
        return mr_api_error_set(e, 400, "invalid_type", "logit_bias",
                                "logit_bias is %s, where an object or an array is expected",
                                mr_api_json_kind(r->logit_bias));
    if (json_object_size(r->logit_bias) > MR_SAMPLER_MAX_BIASES ||
        json_array_size(r->logit_bias) > MR_SAMPLER_MAX_BIASES)
        return mr_api_error_set(e, 400, "array_above_max_length", "logit_bias", "logit_bias has more than %d tokens",
                                MR_SAMPLER_MAX_BIASES);
    if (!(r->biases = mr_alloc_array(MR_SAMPLER_MAX_BIASES, sizeof *r->biases)))
        return api_no_memory(e);
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)r->logit_bias, key, value) {
        float bias = 0;
        if (!read_bias(value, &bias, e) || !bias_of_text(a, r, mr_str_from(key), bias, e))
            return false;
    }
    for (size_t i = 0; i < json_array_size(r->logit_bias); i++)
        if (!bias_of_pair(a, r, json_array_get(r->logit_bias, i), e))
            return false;
    r->sampling.bias_ids = r->bias_ids.ids;
    r->sampling.biases = r->biases;
    r->sampling.n_biases = (int32_t)r->bias_ids.n;
    return true;
}

/* Appends a word to the list, as the number of its ids and the ids. */
static bool add_bad_word(const mr_api *a, api_request *r, mr_str text, mr_api_error *e) {
    mr_token_buf ids = {0}, *list = &r->bad_word_ids;
    bool ok = api_encode(a, text, MR_ENCODE_CONTINUES, &ids, e);
    if (ok && list->n + 1 + ids.n > MR_SAMPLER_MAX_BAD_WORDS)
        ok = mr_api_error_set(e, 400, "array_above_max_length", "bad_words", "bad_words have more than %d tokens",
                              MR_SAMPLER_MAX_BAD_WORDS);
    ok = ok && (mr_token_buf_push(list, (int32_t)ids.n) || api_no_memory(e));
    for (size_t i = 0; i < ids.n && ok; i++)
        ok = mr_token_buf_push(list, ids.ids[i]) || api_no_memory(e);
    mr_token_buf_deinit(&ids);
    return ok;
}

/* As in vLLM, each word counts in two ways: without and with a space in front. */
bool api_read_bad_words(const mr_api *a, api_request *r, mr_api_error *e) {
    const json_t *value;
    size_t i;
    json_array_foreach(r->bad_words, i, value) {
        const char *word = json_string_value(value);
        size_t n = json_string_length(value), n_spaces = word ? strspn(word, " ") : 0;
        if (!word || n == n_spaces)
            return mr_api_error_set(e, 400, "invalid_type", "bad_words", "bad_words[%zu] is no word", i);
        mr_text_buf spaced = {0};
        bool ok = (mr_text_buf_append(&spaced, " ", 1) && mr_text_buf_append(&spaced, word + n_spaces, n - n_spaces)) ||
                  api_no_memory(e);
        ok = ok && add_bad_word(a, r, (mr_str){spaced.data + 1, spaced.len - 1}, e) &&
             add_bad_word(a, r, (mr_str){spaced.data, spaced.len}, e);
        mr_text_buf_deinit(&spaced);
        if (!ok)
            return false;
    }
    r->sampling.bad_words = r->bad_word_ids.ids;
    r->sampling.n_bad_words = (int32_t)r->bad_word_ids.n;
    return true;
}

static bool add_breaker(api_request *r, int32_t id, mr_api_error *e) {
    if (r->breakers.n == MR_SAMPLER_MAX_BREAKERS)
        return mr_api_error_set(e, 400, "invalid_value", "dry_sequence_breakers",
                                "dry_sequence_breakers stand in more than %d tokens", MR_SAMPLER_MAX_BREAKERS);
    return mr_token_buf_push(&r->breakers, id) || api_no_memory(e);
}

/* Adds all tokens that contain the text. Where there is none, adds the last token of the text. */
static bool add_breakers_of(const mr_api *a, api_request *r, mr_str text, mr_api_error *e) {
    const mr_tokenizer *tok = a->config.tokenizer;
    size_t before = r->breakers.n;
    for (int32_t id = 0; id < mr_tokenizer_n_tokens(tok) && id < a->config.n_vocab; id++) {
        mr_str piece = {0};
        if (mr_tokenizer_piece(tok, id, &piece) && memmem(piece.data, piece.len, text.data, text.len) &&
            !add_breaker(r, id, e))
            return false;
    }
    if (r->breakers.n > before)
        return true;
    mr_token_buf ids = {0};
    bool ok = api_encode(a, text, MR_ENCODE_PARSE_SPECIAL | MR_ENCODE_CONTINUES, &ids, e) &&
              (ids.n == 0 || add_breaker(r, ids.ids[ids.n - 1], e));
    mr_token_buf_deinit(&ids);
    return ok;
}

bool api_read_breakers(const mr_api *a, api_request *r, mr_api_error *e) {
    static const char *const usual[] = {"\n", ":", "\"", "*"}; /* those of llama.cpp */
    const json_t *list = r->dry_sequence_breakers;
    size_t n = list ? json_array_size(list) : sizeof usual / sizeof usual[0];
    if (r->sampling.dry_multiplier == 0 || (!list && r->sampling.n_dry_breakers > 0))
        return true; /* DRY is off, or the breakers of the server's options count */
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        if (list && (!json_is_string(value) || json_string_length(value) == 0))
            return mr_api_error_set(e, 400, "invalid_type", "dry_sequence_breakers",
                                    "dry_sequence_breakers[%zu] is not a text", i);
        mr_str text = list ? (mr_str){json_string_value(value), json_string_length(value)} : mr_str_from(usual[i]);
        if (!add_breakers_of(a, r, text, e))
            return false;
    }
    r->sampling.dry_breakers = r->breakers.ids;
    r->sampling.n_dry_breakers = (int32_t)r->breakers.n;
    return true;
}
