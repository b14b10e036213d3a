/* coordinator/serving/api/api_request_fields.c - the tables of the fields of requests: fields that are read, fields
 * that do not change the output and are ignored, and fields that are refused. FIELDS.md lists the fields for users. */
// SPDX-License-Identifier: Apache-2.0
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/serving/api/api_fields.h"
#include "coordinator/serving/api/api_request.h"
#include "coordinator/serving/wire/api_json.h"

#define AT(member) offsetof(api_request, member)
#define SAMPLING(member) offsetof(api_request, sampling.member)

#define MIN_PENALTY 1e-6 /* above 0 */
#define NEVER 1, 0       /* low and high of a field of which no number means off */
#define BELOW_0 -(double)INFINITY, -DBL_MIN

enum { MAX_TEXT_BYTES = MR_ENCODE_MAX_BYTES };

/* Fields of OpenAI's API, and of llama-server and vLLM. mr_sampling_params_check checks samplers whose range depends on
 * more than one field. */
static const api_field generate_fields[] = {
    {"max_tokens", API_FIELD_INT32, AT(max_tokens), -1, INT32_MAX},
    {"max_completion_tokens", API_FIELD_INT32, AT(max_tokens), -1, INT32_MAX},
    {"n_predict", API_FIELD_INT32, AT(max_tokens), -1, INT32_MAX},
    {"n_cmpl", API_FIELD_INT32, AT(n), 1, API_MAX_CHOICES},
    {"n", API_FIELD_INT32, AT(n), 1, API_MAX_CHOICES},
    {"min_tokens", API_FIELD_INT32, AT(sampling.min_tokens), 0, INT32_MAX},
    {"stop_token_ids", API_FIELD_ARRAY, AT(stop_token_ids), 0, API_MAX_STOP_IDS},
    {"bad_words", API_FIELD_ARRAY, AT(bad_words), 0, API_MAX_BAD_WORDS},
    {"truncate_prompt_tokens", API_FIELD_INT32, AT(truncate_prompt_tokens), -1, INT32_MAX},
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
    {"structured_outputs", API_FIELD_OBJECT, AT(structured_outputs), 0, 0},
    {"guided_json", API_FIELD_ANY, AT(guided_json), 0, 0},
    {"guided_regex", API_FIELD_TEXT, AT(guided_regex), 0, MAX_TEXT_BYTES},
    {"guided_choice", API_FIELD_ARRAY, AT(guided_choice), 0, API_MAX_GUIDED_CHOICES},
    {"guided_grammar", API_FIELD_TEXT, AT(guided_grammar), 0, MAX_TEXT_BYTES},
    {"samplers", API_FIELD_ANY, AT(samplers), 0, 0},

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
    {"add_special_tokens", API_FIELD_REFUSED, 0, 1, 1},
};

static const api_field message_fields[] = {
    {"messages", API_FIELD_ARRAY, AT(messages), 0, API_MAX_VALUES},
    {"tools", API_FIELD_ARRAY, AT(tools), 0, API_MAX_TOOLS},
    {"tool_choice", API_FIELD_ANY, AT(tool_choice), 0, 0},
    {"chat_template_kwargs", API_FIELD_OBJECT, AT(template_kwargs), 0, 0},
    {"reasoning_effort", API_FIELD_TEXT, AT(reasoning_effort), 0, 64},
    {"add_generation_prompt", API_FIELD_BOOL, AT(add_generation_prompt), 0, 0},
    {"continue_final_message", API_FIELD_BOOL, AT(continue_final_message), 0, 0},
    {"documents", API_FIELD_ARRAY, AT(documents), 0, API_MAX_VALUES},
    {"chat_template", API_FIELD_REFUSED, 0, 0, 0},
    {"thinking", API_FIELD_ANY, AT(thinking_field), 0, 0},
    {"reasoning", API_FIELD_ANY, AT(reasoning_field), 0, 0},
    {"functions", API_FIELD_REFUSED, 0, 0, 0},
    {"function_call", API_FIELD_REFUSED, 0, 0, 0},
};

static const api_field chat_fields[] = {
    {"parallel_tool_calls", API_FIELD_BOOL, AT(parallel_tool_calls), 0, 0},
    {"reasoning_format", API_FIELD_TEXT, AT(reasoning_format), 0, 64},
    {"logprobs", API_FIELD_BOOL, AT(want_logprobs), 0, 0},
    {"n_probs", API_FIELD_INT32, AT(top_logprobs), 0, API_MAX_TOP_LOGPROBS},
    {"top_logprobs", API_FIELD_INT32, AT(top_logprobs), 0, API_MAX_TOP_LOGPROBS},
    {"modalities", API_FIELD_ANY, AT(modalities), 0, 0},
    {"audio", API_FIELD_REFUSED, 0, 0, 0},
    {"add_special_tokens", API_FIELD_IGNORED, 0, 0, 0}, /* a rendered prompt never gets a second bos */
    {"best_of", API_FIELD_REFUSED, 0, 0, 1},
    {"echo", API_FIELD_REFUSED, 0, 0, 0},
    {"parse_tool_calls", API_FIELD_REFUSED, 0, 1, 1},
    {"thinking_forced_open", API_FIELD_REFUSED, 0, 0, 0},
    {"include_reasoning", API_FIELD_REFUSED, 0, 1, 1},
    {"separate_reasoning", API_FIELD_REFUSED, 0, 1, 1},
    {"verbosity", API_FIELD_REFUSED, 0, 0, 0},
    {"web_search_options", API_FIELD_REFUSED, 0, NEVER},
};

static const api_field embedding_fields[] = {
    {"input", API_FIELD_ANY, AT(prompt), 0, 0},
    {"encoding_format", API_FIELD_TEXT, AT(encoding_format), 0, 16},
    {"dimensions", API_FIELD_INT32, AT(dimensions), 1, INT32_MAX},
    {"pooling", API_FIELD_TEXT, AT(pooling_name), 0, 16},
    {"priority", API_FIELD_INT32, AT(priority), -1000, 1000},
    {"truncate_prompt_tokens", API_FIELD_INT32, AT(truncate_prompt_tokens), -1, INT32_MAX},
    {"add_special_tokens", API_FIELD_REFUSED, 0, 1, 1},
    {"normalize", API_FIELD_REFUSED, 0, 1, 1},
    {"embd_normalize", API_FIELD_REFUSED, 0, 2, 2},
};

static const api_field rerank_fields[] = {
    {"query", API_FIELD_TEXT, AT(query), 0, MAX_TEXT_BYTES},
    {"documents", API_FIELD_ARRAY, AT(documents), 0, API_MAX_INPUTS},
    {"top_n", API_FIELD_INT32, AT(top_n), 1, INT32_MAX},
    {"return_documents", API_FIELD_BOOL, AT(return_documents), 0, 0},
    {"priority", API_FIELD_INT32, AT(priority), -1000, 1000},
    {"truncate_prompt_tokens", API_FIELD_REFUSED, 0, NEVER},
    {"max_tokens_per_doc", API_FIELD_REFUSED, 0, NEVER},
    {"max_chunks_per_doc", API_FIELD_REFUSED, 0, NEVER},
    {"rank_fields", API_FIELD_REFUSED, 0, 0, 0},
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

/* Fields about the client, storage, speed and extra reports: these do not change the output. */
static const api_field ignored_fields[] = {
    {"model", API_FIELD_IGNORED, 0, 0, 0},
    {"user", API_FIELD_IGNORED, 0, 0, 0},
    {"metadata", API_FIELD_IGNORED, 0, 0, 0},
    {"store", API_FIELD_IGNORED, 0, 0, 0},
    {"service_tier", API_FIELD_IGNORED, 0, 0, 0},
    {"safety_identifier", API_FIELD_IGNORED, 0, 0, 0},
    {"prompt_cache_key", API_FIELD_IGNORED, 0, 0, 0},
    {"prompt_cache_retention", API_FIELD_IGNORED, 0, 0, 0},
    {"prediction", API_FIELD_IGNORED, 0, 0, 0},
    {"request_id", API_FIELD_IGNORED, 0, 0, 0},
    {"rid", API_FIELD_IGNORED, 0, 0, 0},
    {"guided_decoding_backend", API_FIELD_IGNORED, 0, 0, 0},
    {"length_penalty", API_FIELD_IGNORED, 0, 0, 0},
    {"spaces_between_special_tokens", API_FIELD_IGNORED, 0, 0, 0},
    {"stream_reasoning", API_FIELD_IGNORED, 0, 0, 0},
    {"cache_prompt", API_FIELD_IGNORED, 0, 0, 0},
    {"id_slot", API_FIELD_IGNORED, 0, 0, 0},
    {"n_keep", API_FIELD_IGNORED, 0, 0, 0},
    {"n_discard", API_FIELD_IGNORED, 0, 0, 0},
    {"n_cache_reuse", API_FIELD_IGNORED, 0, 0, 0},
    {"timings_per_token", API_FIELD_IGNORED, 0, 0, 0},
    {"return_progress", API_FIELD_IGNORED, 0, 0, 0},
    {"sse_ping_interval", API_FIELD_IGNORED, 0, 0, 0},
    {"backend_sampling", API_FIELD_IGNORED, 0, 0, 0},
    {"dynatemp_exponent", API_FIELD_IGNORED, 0, 0, 0},
    {"adaptive_decay", API_FIELD_IGNORED, 0, 0, 0},
    {"preserved_tokens", API_FIELD_IGNORED, 0, 0, 0},
    {"chat_format", API_FIELD_IGNORED, 0, 0, 0},
    {"speculative.n_max", API_FIELD_IGNORED, 0, 0, 0},
    {"speculative.n_min", API_FIELD_IGNORED, 0, 0, 0},
    {"speculative.p_min", API_FIELD_IGNORED, 0, 0, 0},
};

/* Features of other servers that this server does not have. */
static const api_field refused_fields[] = {
    {"use_beam_search", API_FIELD_REFUSED, 0, 0, 0},
    {"include_stop_str_in_output", API_FIELD_REFUSED, 0, 0, 0},
    {"no_stop_trim", API_FIELD_REFUSED, 0, 0, 0},
    {"skip_special_tokens", API_FIELD_REFUSED, 0, 1, 1},
    {"prompt_logprobs", API_FIELD_REFUSED, 0, NEVER},
    {"allowed_token_ids", API_FIELD_REFUSED, 0, 0, 0},
    {"guided_whitespace_pattern", API_FIELD_REFUSED, 0, 0, 0},
    {"structural_tag", API_FIELD_REFUSED, 0, 0, 0},
    {"logits_processors", API_FIELD_REFUSED, 0, 0, 0},
    {"custom_logit_processor", API_FIELD_REFUSED, 0, 0, 0},
    {"custom_params", API_FIELD_REFUSED, 0, 0, 0},
    {"return_tokens_as_token_ids", API_FIELD_REFUSED, 0, 0, 0},
    {"return_token_ids", API_FIELD_REFUSED, 0, 0, 0},
    {"return_tokens", API_FIELD_REFUSED, 0, 0, 0},
    {"return_hidden_states", API_FIELD_REFUSED, 0, 0, 0},
    {"post_sampling_probs", API_FIELD_REFUSED, 0, 0, 0},
    {"response_fields", API_FIELD_REFUSED, 0, 0, 0},
    {"cache_salt", API_FIELD_REFUSED, 0, 0, 0},
    {"kv_transfer_params", API_FIELD_REFUSED, 0, 0, 0},
    {"vllm_xargs", API_FIELD_REFUSED, 0, 0, 0},
    {"prompt_embeds", API_FIELD_REFUSED, 0, 0, 0},
    {"mm_processor_kwargs", API_FIELD_REFUSED, 0, 0, 0},
    {"multimodal_data", API_FIELD_REFUSED, 0, 0, 0},
    {"image_data", API_FIELD_REFUSED, 0, 0, 0},
    {"lora", API_FIELD_REFUSED, 0, 0, 0},
    {"lora_path", API_FIELD_REFUSED, 0, 0, 0},
    {"session_params", API_FIELD_REFUSED, 0, 0, 0},
    {"stop_regex", API_FIELD_REFUSED, 0, 0, 0},
    {"reasoning_budget", API_FIELD_REFUSED, 0, -1, -1},
    {"reasoning_budget_tokens", API_FIELD_REFUSED, 0, -1, -1},
    {"thinking_budget", API_FIELD_REFUSED, 0, -1, -1},
    {"thinking_budget_tokens", API_FIELD_REFUSED, 0, -1, -1},
    {"thinking_token_budget", API_FIELD_REFUSED, 0, -1, -1},
    {"dynatemp_range", API_FIELD_REFUSED, 0, 0, 0},
    {"adaptive_target", API_FIELD_REFUSED, 0, BELOW_0},
    {"min_keep", API_FIELD_REFUSED, 0, 0, 1},
    {"t_max_predict_ms", API_FIELD_REFUSED, 0, -INFINITY, 0},
    {"t_max_prompt_ms", API_FIELD_REFUSED, 0, -INFINITY, 0},
    {"n_indent", API_FIELD_REFUSED, 0, 0, 0},
    {"penalize_nl", API_FIELD_REFUSED, 0, 0, 0},
    {"tfs_z", API_FIELD_REFUSED, 0, 1, 1},
    {"top_a", API_FIELD_REFUSED, 0, 0, 0},
    {"grammar_lazy", API_FIELD_REFUSED, 0, 0, 0},
    {"grammar_triggers", API_FIELD_REFUSED, 0, 0, 0},
    {"generation_prompt", API_FIELD_REFUSED, 0, 0, 0},
};

#define TABLE(name)                                                                                                    \
    { name, sizeof(name) / sizeof(name)[0] }

static const api_field_table tables[][API_FIELD_TABLES] = {
    [API_COMPLETIONS] = {TABLE(generate_fields), TABLE(completion_fields), TABLE(ignored_fields),
                         TABLE(refused_fields)},
    [API_CHAT_COMPLETIONS] = {TABLE(generate_fields), TABLE(message_fields), TABLE(chat_fields), TABLE(ignored_fields),
                              TABLE(refused_fields)},
    [API_EMBEDDINGS] = {TABLE(embedding_fields), TABLE(ignored_fields)},
    [API_RERANK] = {TABLE(rerank_fields), TABLE(ignored_fields)},
    [API_TOKENIZE] = {TABLE(tokenize_fields)},
    [API_DETOKENIZE] = {TABLE(detokenize_fields)},
    [API_APPLY_TEMPLATE] = {TABLE(message_fields), TABLE(ignored_fields)},
};

api_field_table api_request_fields(mr_api_endpoint endpoint, size_t i) {
    return tables[endpoint][i];
}
