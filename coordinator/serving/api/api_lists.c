/* coordinator/serving/api/api_lists.c - reads the fields of a request whose values may be a single item or a list: stop
 * texts, stop ids, and prompts as texts or as ids. Prompts are encoded and truncated here. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "coordinator/serving/api/api_request.h"
#include "coordinator/serving/wire/api_json.h"
#include "engine/base/mem.h"

/* A prompt with more bytes is not encoded, if the context has no room for it even in the longest tokens. */
enum { MAX_COUNTED_BYTES = 1 << 20 };

static bool read_stop(const json_t *value, const char **out, mr_api_error *e) {
    const char *text = json_string_value(value);
    size_t n = json_string_length(value);
    if (!text)
        return mr_api_error_set(e, 400, "invalid_type", "stop", "stop has %s, where a string is expected",
                                mr_api_json_kind(value));
    if (n > API_MAX_STOP_BYTES || strlen(text) != n)
        return mr_api_error_set(e, 400, "invalid_value", "stop",
                                "a stop text has %zu bytes, where %d at most, none of them zero, are allowed", n,
                                API_MAX_STOP_BYTES);
    *out = text;
    return true;
}

bool api_read_stops(api_request *r, mr_api_error *e) {
    if (!r->stop)
        return true;
    if (!json_is_string(r->stop) && !json_is_array(r->stop))
        return mr_api_error_set(e, 400, "invalid_type", "stop", "stop is %s, where a string or an array is expected",
                                mr_api_json_kind(r->stop));
    size_t n = json_is_array(r->stop) ? json_array_size(r->stop) : 1;
    if (n > API_MAX_STOPS)
        return mr_api_error_set(e, 400, "array_above_max_length", "stop", "stop has %zu texts, where %d are allowed", n,
                                API_MAX_STOPS);
    if (!(r->stops = mr_alloc_array(n, sizeof *r->stops)))
        return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const char **stop = &r->stops[r->n_stops];
        if (!read_stop(json_is_array(r->stop) ? json_array_get(r->stop, i) : r->stop, stop, e))
            return false;
        r->n_stops += **stop != 0; /* an empty text stops nothing */
    }
    return true;
}

bool api_read_stop_ids(const mr_api *a, api_request *r, mr_api_error *e) {
    if (r->stop_token_ids && !api_read_ids(a, r->stop_token_ids, "stop_token_ids", &r->stop_ids, e))
        return false;
    if (r->sampling.min_tokens == 0)
        return true;
    if (!mr_token_buf_reserve(&r->late_ids, a->end_ids.n + r->stop_ids.n))
        return api_no_memory(e);
    for (size_t i = 0; i < a->end_ids.n + r->stop_ids.n; i++)
        r->late_ids.ids[r->late_ids.n++] = i < a->end_ids.n ? a->end_ids.ids[i] : r->stop_ids.ids[i - a->end_ids.n];
    r->sampling.late_ids = r->late_ids.ids;
    r->sampling.n_late_ids = (int32_t)r->late_ids.n;
    return true;
}

bool api_is_token(const mr_api *a, double id) {
    return id >= 0 && id < mr_tokenizer_n_tokens(a->config.tokenizer) && id < a->config.n_vocab;
}

bool api_encode(const mr_api *a, mr_str text, unsigned flags, mr_token_buf *out, mr_api_error *e) {
    mr_err err = {0};
    mr_status status = mr_tokenizer_encode(a->config.tokenizer, text, flags, out, &err);
    return status == MR_OK || mr_api_error_from(e, status, &err);
}

bool api_truncate_prompt(const mr_api *a, const api_request *r, mr_token_buf *ids) {
    int32_t context = a->config.max_context;
    int32_t room = r->endpoint == API_EMBEDDINGS ? 0 : r->max_tokens < 1 ? 1 : r->max_tokens;
    int32_t most = r->truncate_prompt_tokens > 0 ? r->truncate_prompt_tokens : room < context ? context - room : 1;
    if (r->truncate_prompt_tokens == 0 || ids->n <= (size_t)most)
        return false;
    bool has_bos = most > 1 && ids->ids[0] == mr_tokenizer_bos_id(a->config.tokenizer);
    size_t n_kept = (size_t)most - has_bos;
    memmove(ids->ids + has_bos, ids->ids + ids->n - n_kept, n_kept * sizeof *ids->ids);
    ids->n = (size_t)most;
    return true;
}

bool api_encode_prompt(const mr_api *a, const api_request *r, mr_str text, mr_token_buf *out, mr_api_error *e) {
    unsigned flags = MR_ENCODE_PARSE_SPECIAL; /* prompts may be rendered templates, as in other servers */
    size_t n_least = text.len / a->longest_token_bytes;
    if (r->endpoint != API_RERANK) /* whose template writes bos and eos */
        flags |= MR_ENCODE_BOS | (r->endpoint == API_EMBEDDINGS ? (unsigned)MR_ENCODE_EOS : 0U);
    if (text.len > MAX_COUNTED_BYTES && n_least > (size_t)a->config.max_context && r->truncate_prompt_tokens == 0)
        return mr_api_error_too_long(e, NULL, n_least, true, a->config.max_context);
    return api_encode(a, text, flags, out, e);
}

bool api_read_ids(const mr_api *a, const json_t *list, const char *name, mr_token_buf *out, mr_api_error *e) {
    size_t n = json_array_size(list);
    if (!mr_token_buf_reserve(out, n))
        return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_integer(value))
            return mr_api_error_set(e, 400, "invalid_type", name, "%s[%zu] is %s, where a token id is expected", name,
                                    i, mr_api_json_kind(value));
        if (!api_is_token(a, (double)json_integer_value(value)))
            return mr_api_error_set(e, 400, "invalid_value", name, "%s[%zu] is %lld, which is no token id", name, i,
                                    (long long)json_integer_value(value));
        if (!mr_token_buf_push(out, (int32_t)json_integer_value(value)))
            return api_no_memory(e);
    }
    return true;
}

/* A text or a list of ids. */
static bool read_prompt(const mr_api *a, const api_request *r, const json_t *value, const char *name, api_prompt *out,
                        mr_api_error *e) {
    if (json_is_string(value)) {
        out->text = (mr_str){json_string_value(value), json_string_length(value)};
        if (!api_encode_prompt(a, r, out->text, &out->ids, e))
            return false;
    } else if (json_is_array(value)) {
        if (!api_read_ids(a, value, name, &out->ids, e))
            return false;
    } else {
        return mr_api_error_set(e, 400, "invalid_type", name, "%s is %s, where a string or token ids are expected",
                                name, mr_api_json_kind(value));
    }
    if (api_truncate_prompt(a, r, &out->ids))
        out->text = (mr_str){0}; /* an echo decodes the ids that are left */
    if (out->ids.n == 0)
        return mr_api_error_set(e, 400, "invalid_value", name, "%s is empty: a model needs one token at least", name);
    return out->ids.n <= (size_t)a->config.max_context ||
           mr_api_error_too_long(e, name, out->ids.n, false, a->config.max_context);
}

bool api_read_prompts(const mr_api *a, api_request *r, const json_t *value, const char *name, mr_api_error *e) {
    const json_t *first = json_array_get(value, 0);
    bool many = json_is_string(first) || json_is_array(first);
    size_t n = many ? json_array_size(value) : 1;
    if (n * (size_t)r->n > API_MAX_INPUTS)
        return mr_api_error_set(e, 400, "array_above_max_length", name, "%s asks for %zu answers, where %d are allowed",
                                name, n * (size_t)r->n, API_MAX_INPUTS);
    if (!(r->prompts = mr_alloc_array(n, sizeof *r->prompts)))
        return api_no_memory(e);
    r->n_prompts = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        char element[96];
        snprintf(element, sizeof element, "%s[%zu]", name, i);
        if (!read_prompt(a, r, many ? json_array_get(value, i) : value, many ? element : name, &r->prompts[i], e))
            return false;
    }
    return true;
}
