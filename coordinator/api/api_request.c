// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/api_request.h"

#include <stddef.h>
#include <stdint.h>

#include "coordinator/api/api_fields.h"
#include "coordinator/api/api_json.h"
#include "engine/base/mem.h"

#define AT(member) offsetof(api_request, member)
#define SAMPLING(member) offsetof(api_request, sampling.member)

#define MIN_PENALTY 1e-6 /* above 0 */

enum { MAX_TEXT_BYTES = MR_ENCODE_MAX_BYTES };

/* Names of OpenAI's API first; of llama-server's the others. Ranges of samplers that are not plain are those of
 * mr_sampling_params_check, which is asked too. */
static const api_field generate_fields[] = {
    {"max_tokens", API_FIELD_INT32, AT(max_tokens), -1, INT32_MAX},
    {"max_completion_tokens", API_FIELD_INT32, AT(max_tokens), -1, INT32_MAX},
    {"n_predict", API_FIELD_INT32, AT(max_tokens), -1, INT32_MAX},
    {"n", API_FIELD_INT32, AT(n), 1, API_MAX_CHOICES},
    {"stop", API_FIELD_ANY, AT(stop), 0, 0},
    {"stream", API_FIELD_BOOL, AT(stream), 0, 0},
    {"stream_options", API_FIELD_OBJECT, AT(stream_options), 0, 0},
    {"seed", API_FIELD_INT64, AT(seed), 0, 0},
    {"logit_bias", API_FIELD_ANY, AT(logit_bias), 0, 0},
    {"response_format", API_FIELD_OBJECT, AT(response_format), 0, 0},
    {"priority", API_FIELD_INT32, AT(priority), -1000, 1000},
    {"grammar", API_FIELD_TEXT, AT(grammar_text), 0, MAX_TEXT_BYTES},
    {"json_schema", API_FIELD_ANY, AT(json_schema), 0, 0},
    {"ignore_eos", API_FIELD_BOOL, AT(ignore_end), 0, 0},

    {"temperature", API_FIELD_FLOAT, SAMPLING(temperature), 0, 100},
    {"top_p", API_FIELD_FLOAT, SAMPLING(top_p), 0, 1},
    {"top_k", API_FIELD_INT32, SAMPLING(top_k), -1, INT32_MAX},
    {"min_p", API_FIELD_FLOAT, SAMPLING(min_p), 0, 1},
    {"typical_p", API_FIELD_FLOAT, SAMPLING(typical_p), 0, 1},
    {"typ_p", API_FIELD_FLOAT, SAMPLING(typical_p), 0, 1},
    {"top_n_sigma", API_FIELD_FLOAT, SAMPLING(top_n_sigma), -1, 1000},
    {"xtc_probability", API_FIELD_FLOAT, SAMPLING(xtc_probability), 0, 1},
    {"xtc_threshold", API_FIELD_FLOAT, SAMPLING(xtc_threshold), 0, 1},
    {"presence_penalty", API_FIELD_FLOAT, SAMPLING(presence_penalty), -100, 100},
    {"frequency_penalty", API_FIELD_FLOAT, SAMPLING(frequency_penalty), -100, 100},
    {"repetition_penalty", API_FIELD_FLOAT, SAMPLING(repeat_penalty), MIN_PENALTY, 100},
    {"repeat_penalty", API_FIELD_FLOAT, SAMPLING(repeat_penalty), MIN_PENALTY, 100},
    {"repeat_last_n", API_FIELD_INT32, SAMPLING(repeat_last_n), -1, INT32_MAX},
    {"dry_multiplier", API_FIELD_FLOAT, SAMPLING(dry_multiplier), 0, 100},
    {"dry_base", API_FIELD_FLOAT, SAMPLING(dry_base), 0, 100},
    {"dry_allowed_length", API_FIELD_INT32, SAMPLING(dry_allowed_length), 0, INT32_MAX},
    {"dry_penalty_last_n", API_FIELD_INT32, SAMPLING(dry_last_n), -1, INT32_MAX},
    {"dry_sequence_breakers", API_FIELD_ARRAY, AT(dry_sequence_breakers), 0, API_MAX_BREAKERS},
    {"mirostat", API_FIELD_INT32, SAMPLING(mirostat), 0, 2},
    {"mirostat_tau", API_FIELD_FLOAT, SAMPLING(mirostat_tau), 0, 100},
    {"mirostat_eta", API_FIELD_FLOAT, SAMPLING(mirostat_eta), 0, 10},
};

static const api_field completion_fields[] = {
    {"prompt", API_FIELD_ANY, AT(prompt), 0, 0},
    {"best_of", API_FIELD_INT32, AT(best_of), 1, API_MAX_CHOICES},
    {"echo", API_FIELD_BOOL, AT(echo), 0, 0},
    {"n_probs", API_FIELD_INT32, AT(n_logprobs), 0, API_MAX_TOP_LOGPROBS},
    {"logprobs", API_FIELD_INT32, AT(n_logprobs), 0, API_MAX_TOP_LOGPROBS},
    {"suffix", API_FIELD_REFUSED, 0, 0, 0},
};

static const api_field message_fields[] = {
    {"messages", API_FIELD_ARRAY, AT(messages), 0, API_MAX_VALUES},
    {"tools", API_FIELD_ARRAY, AT(tools), 0, API_MAX_TOOLS},
    {"tool_choice", API_FIELD_ANY, AT(tool_choice), 0, 0},
    {"chat_template_kwargs", API_FIELD_OBJECT, AT(template_kwargs), 0, 0},
    {"reasoning_effort", API_FIELD_TEXT, AT(reasoning_effort), 0, 64},
    {"add_generation_prompt", API_FIELD_BOOL, AT(add_generation_prompt), 0, 0},
};

static const api_field chat_fields[] = {
    {"parallel_tool_calls", API_FIELD_BOOL, AT(parallel_tool_calls), 0, 0},
    {"reasoning_format", API_FIELD_TEXT, AT(reasoning_format), 0, 64},
    {"logprobs", API_FIELD_BOOL, AT(want_logprobs), 0, 0},
    {"n_probs", API_FIELD_INT32, AT(top_logprobs), 0, API_MAX_TOP_LOGPROBS},
    {"top_logprobs", API_FIELD_INT32, AT(top_logprobs), 0, API_MAX_TOP_LOGPROBS},
    {"functions", API_FIELD_REFUSED, 0, 0, 0},
    {"audio", API_FIELD_REFUSED, 0, 0, 0},
};

static const api_field embedding_fields[] = {
    {"input", API_FIELD_ANY, AT(prompt), 0, 0},
    {"encoding_format", API_FIELD_TEXT, AT(encoding_format), 0, 16},
    {"dimensions", API_FIELD_INT32, AT(dimensions), 1, INT32_MAX},
    {"pooling", API_FIELD_TEXT, AT(pooling_name), 0, 16},
    {"priority", API_FIELD_INT32, AT(priority), -1000, 1000},
};

static const api_field tokenize_fields[] = {
    {"content", API_FIELD_TEXT, AT(content), 0, MAX_TEXT_BYTES},
    {"add_special", API_FIELD_BOOL, AT(add_special), 0, 0},
    {"parse_special", API_FIELD_BOOL, AT(parse_special), 0, 0},
    {"with_pieces", API_FIELD_BOOL, AT(with_pieces), 0, 0},
};

static const api_field detokenize_fields[] = {
    {"tokens", API_FIELD_ARRAY, AT(tokens), 0, API_MAX_VALUES},
};

static const api_field stream_option_fields[] = {
    {"include_usage", API_FIELD_BOOL, AT(include_usage), 0, 0},
};

typedef struct field_table {
    const api_field *fields;
    size_t n;
} field_table;
#define TABLE(name)                                                                                                    \
    { name, sizeof(name) / sizeof(name)[0] }

static const field_table tables[][3] = {
    [API_COMPLETIONS] = {TABLE(generate_fields), TABLE(completion_fields)},
    [API_CHAT_COMPLETIONS] = {TABLE(generate_fields), TABLE(message_fields), TABLE(chat_fields)},
    [API_EMBEDDINGS] = {TABLE(embedding_fields)},
    [API_TOKENIZE] = {TABLE(tokenize_fields)},
    [API_DETOKENIZE] = {TABLE(detokenize_fields)},
    [API_APPLY_TEMPLATE] = {TABLE(message_fields)},
};

static bool required(const api_request *r, api_error *e) {
    const char *name = NULL;
    if (r->endpoint == API_COMPLETIONS && !r->prompt)
        name = "prompt";
    if ((r->endpoint == API_CHAT_COMPLETIONS || r->endpoint == API_APPLY_TEMPLATE) && !r->messages)
        name = "messages";
    if (r->endpoint == API_EMBEDDINGS && !r->prompt)
        name = "input";
    if (r->endpoint == API_TOKENIZE && !r->content.data)
        name = "content";
    if (r->endpoint == API_DETOKENIZE && !r->tokens)
        name = "tokens";
    return !name || api_error_set(e, 400, "missing_required_parameter", name, "%s is missing", name);
}

/* Fields that mean something only together. */
static bool check_generate(api_request *r, api_error *e) {
    mr_err err = {0};
    if (r->stream_options && !r->stream)
        return api_error_set(e, 400, "invalid_value", "stream_options", "stream_options needs stream to be true");
    if (r->best_of > 0 && r->best_of != r->n)
        return api_error_set(e, 400, "unsupported_parameter", "best_of",
                             "best_of is %d and n is %d: choosing among more than n answers is not supported",
                             r->best_of, r->n);
    if (r->top_logprobs > 0 && !r->want_logprobs)
        return api_error_set(e, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs to be true");
    if (r->want_logprobs)
        r->n_logprobs = r->top_logprobs;
    if (r->sampling.top_k < 0) /* as others write "off" */
        r->sampling.top_k = 0;
    if (r->sampling.top_n_sigma < 0)
        r->sampling.top_n_sigma = 0;
    if (r->sampling.dry_multiplier != 0 && r->sampling.dry_base < 1)
        return api_error_set(e, 400, "invalid_value", "dry_base", "dry_base is %g, outside 1 to 100",
                             (double)r->sampling.dry_base);
    if (r->sampling.mirostat != 0 && r->sampling.mirostat_tau == 0)
        return api_error_set(e, 400, "invalid_value", "mirostat_tau", "mirostat_tau is 0; it has to be above");
    if (mr_sampling_params_check(&r->sampling, &err) != MR_OK)
        return api_error_set(e, 400, "invalid_value", NULL, "%s", err.text);
    return true;
}

bool api_request_read(const api *a, api_endpoint endpoint, mr_str body, api_request *out, api_error *e) {
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
    if (!(out->body = api_json_parse(body, e)))
        return false;
    for (size_t i = 0; i < sizeof tables[0] / sizeof tables[0][0]; i++) {
        const field_table *t = &tables[endpoint][i];
        if (!api_fields_read(t->fields, t->n, NULL, out->body, out, e))
            return false;
    }
    if (out->stream_options &&
        !api_fields_read(stream_option_fields, 1, "stream_options.", out->stream_options, out, e))
        return false;
    if (!required(out, e))
        return false;
    return (endpoint != API_COMPLETIONS && endpoint != API_CHAT_COMPLETIONS) || check_generate(out, e);
}

void api_request_deinit(api_request *r) {
    for (int32_t i = 0; i < r->n_prompts; i++)
        mr_token_buf_deinit(&r->prompts[i].ids);
    mr_free(r->prompts);
    mr_free(r->stops);
    mr_free(r->biases);
    mr_token_buf_deinit(&r->bias_ids);
    mr_token_buf_deinit(&r->breakers);
    mr_free(r->grammar);
    json_decref(r->body);
    *r = (api_request){0};
}
