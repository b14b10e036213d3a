/* coordinator/serving/api/api_request.c - reads the body of a request by the tables of fields, and checks fields that
 * depend on each other. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/api/api_request.h"

#include <stddef.h>
#include <stdint.h>

#include "coordinator/serving/api/api_fields.h"
#include "coordinator/serving/wire/api_json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/text/utf8.h"

static const api_field stream_option_fields[] = {
    {"include_usage", API_FIELD_BOOL, offsetof(api_request, include_usage), 0, 0},
    {"include_obfuscation", API_FIELD_IGNORED, 0, 0, 0},
    {"continuous_usage_stats", API_FIELD_BOOL, offsetof(api_request, usage_in_chunks), 0, 0},
};

bool api_no_memory(mr_api_error *e) {
    return mr_api_error_set(e, 503, NULL, NULL, "no memory for the request");
}

static bool is_known(mr_api_endpoint endpoint, const char *name) {
    for (size_t i = 0; i < API_FIELD_TABLES; i++) {
        api_field_table t = api_request_fields(endpoint, i);
        for (size_t k = 0; k < t.n; k++)
            if (strcmp(t.fields[k].name, name) == 0)
                return true;
    }
    return false;
}

/* Unknown fields are ignored, as in most servers, because clients send fields of other servers. The log names the first
 * one, which helps to find a misspelt field. */
static void note_unknown(const api_request *r) {
    const char *name;
    json_t *value;
    char shown[128];
    if (!mr_log_enabled(MR_LOG_DEBUG))
        return;
    json_object_foreach(r->body, name, value) {
        if (is_known(r->endpoint, name))
            continue;
        mr_utf8_printable(mr_str_from(name), shown, sizeof shown);
        mr_log_write(MR_LOG_DEBUG, "api", "a request has the unknown field %s", shown);
        return;
    }
}

static bool required(const api_request *r, mr_api_error *e) {
    const char *name = NULL;
    if (r->endpoint == API_COMPLETIONS && !r->prompt)
        name = "prompt";
    if ((r->endpoint == API_CHAT_COMPLETIONS || r->endpoint == API_APPLY_TEMPLATE) && !r->messages)
        name = "messages";
    if (r->endpoint == API_EMBEDDINGS && !r->prompt)
        name = "input";
    if (r->endpoint == API_RERANK && !r->documents)
        name = "documents";
    if (r->endpoint == API_RERANK && !r->query.data)
        name = "query";
    if (r->endpoint == API_TOKENIZE && !r->content.data)
        name = "content";
    if (r->endpoint == API_DETOKENIZE && !r->tokens)
        name = "tokens";
    return !name || mr_api_error_set(e, 400, "missing_required_parameter", name, "%s is missing", name);
}

static bool check_modalities(const api_request *r, mr_api_error *e) {
    const json_t *one;
    size_t i;
    if (r->modalities && !json_is_array(r->modalities))
        return mr_api_error_set(e, 400, "invalid_type", "modalities", "modalities is %s, where an array is expected",
                                mr_api_json_kind(r->modalities));
    json_array_foreach(r->modalities, i, one) {
        if (!json_is_string(one) || !mr_str_is(mr_str_from(json_string_value(one)), "text"))
            return mr_api_error_set(e, 400, "unsupported_parameter", "modalities",
                                    "only the modality text is supported");
    }
    return true;
}

/* Checks the fields of endpoints that generate, where one field depends on another. */
static bool check_generate(api_request *r, mr_api_error *e) {
    mr_err err = {0};
    if (r->stream_options && !r->stream)
        return mr_api_error_set(e, 400, "invalid_value", "stream_options", "stream_options needs stream to be true");
    if (r->best_of > 0 && r->best_of != r->n)
        return mr_api_error_set(e, 400, "unsupported_parameter", "best_of",
                                "best_of is %d and n is %d: choosing among more than n answers is not supported",
                                r->best_of, r->n);
    if (r->top_logprobs > 0 && !r->want_logprobs)
        return mr_api_error_set(e, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs to be true");
    if (r->want_logprobs)
        r->n_logprobs = r->top_logprobs;
    if (r->sampling.top_k < 0) /* off, as other servers write it */
        r->sampling.top_k = 0;
    if (r->sampling.top_n_sigma < 0)
        r->sampling.top_n_sigma = 0;
    if (r->sampling.dry_multiplier != 0 && r->sampling.dry_base < 1)
        return mr_api_error_set(e, 400, "invalid_value", "dry_base", "dry_base is %g, outside 1 to 100",
                                (double)r->sampling.dry_base);
    if (r->sampling.mirostat != 0 && r->sampling.mirostat_tau == 0)
        return mr_api_error_set(e, 400, "invalid_value", "mirostat_tau", "mirostat_tau is 0; it has to be above");
    if (r->max_tokens >= 0 && r->sampling.min_tokens > r->max_tokens)
        return mr_api_error_set(e, 400, "invalid_value", "min_tokens", "min_tokens is %d, more than max_tokens, %d",
                                r->sampling.min_tokens, r->max_tokens);
    if (mr_sampling_params_check(&r->sampling, &err) != MR_OK)
        return mr_api_error_set(e, 400, "invalid_value", NULL, "%s", err.text);
    return check_modalities(r, e) && api_read_samplers(r, e);
}

bool api_request_read(const mr_api *a, mr_api_endpoint endpoint, mr_str body, api_request *out, mr_api_error *e) {
    *out = (api_request){
        .endpoint = endpoint,
        .sampling = a->config.sampling,
        .seed = -1,
        .n = 1,
        .max_tokens = -1,
        .n_logprobs = -1,
        .parallel_tool_calls = true,
        .add_generation_prompt = true,
        .parse_special = true,
    };
    if (!(out->body = mr_api_json_parse(body, e)))
        return false;
    for (size_t i = 0; i < API_FIELD_TABLES; i++) {
        api_field_table t = api_request_fields(endpoint, i);
        if (!api_fields_read(t.fields, t.n, NULL, out->body, out, e))
            return false;
    }
    note_unknown(out);
    if (out->stream_options &&
        !api_fields_read(stream_option_fields, sizeof stream_option_fields / sizeof stream_option_fields[0],
                         "stream_options.", out->stream_options, out, e))
        return false;
    if (!required(out, e))
        return false;
    if (out->truncate_prompt_tokens == 0 && json_is_number(json_object_get(out->body, "truncate_prompt_tokens")))
        return mr_api_error_set(e, 400, "invalid_value", "truncate_prompt_tokens",
                                "truncate_prompt_tokens is 0: a prompt has one token at least");
    return (endpoint != API_COMPLETIONS && endpoint != API_CHAT_COMPLETIONS) || check_generate(out, e);
}

void api_request_deinit(api_request *r) {
    for (int32_t i = 0; i < r->n_prompts; i++)
        mr_token_buf_deinit(&r->prompts[i].ids);
    mr_free(r->prompts);
    mr_free(r->stops);
    mr_free(r->biases);
    mr_token_buf_deinit(&r->bias_ids);
    mr_token_buf_deinit(&r->stop_ids);
    mr_token_buf_deinit(&r->late_ids);
    mr_token_buf_deinit(&r->bad_word_ids);
    mr_token_buf_deinit(&r->breakers);
    mr_free(r->grammar);
    json_decref(r->body);
    *r = (api_request){0};
}
