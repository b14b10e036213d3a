/* coordinator/serving/api/api_answer.c - writes the answers to completions and chats: one JSON object, or server-sent
 * events whose chunks add up to this object. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/api/api_internal.h"
#include "coordinator/serving/wire/api_json.h"
#include "engine/base/clock.h"

static json_t *envelope(const mr_api_call *call, const char *object, json_t *choices) {
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", call->id, "object", object, "created",
                     (json_int_t)call->created_s, "model", call->a->config.model, "system_fingerprint",
                     call->a->config.fingerprint, "choices", choices);
}

static json_t *usage(const mr_api_call *call) {
    mr_api_call_stats f = mr_api_call_get_stats(call);
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)f.prompt_tokens, "completion_tokens",
                     (json_int_t)f.generated_tokens, "total_tokens", (json_int_t)(f.prompt_tokens + f.generated_tokens),
                     "prompt_tokens_details", "cached_tokens", (json_int_t)f.cached_tokens);
}

/* Timings as llama-server gives them. The prompt takes from the beginning of the first choice to the first token; the
 * prediction takes from there to the last token of all choices. */
static json_t *timings(const mr_api_call *call) {
    mr_api_call_stats f = mr_api_call_get_stats(call);
    int64_t begin_ns = 0, end_ns = 0;
    for (int32_t i = 0; i < call->n_choices; i++) {
        const api_choice *c = &call->choices[i];
        if (c->begin_ns > 0 && (begin_ns == 0 || c->begin_ns < begin_ns))
            begin_ns = c->begin_ns;
        if (c->token_ns > end_ns)
            end_ns = c->token_ns;
    }
    bool any = begin_ns > 0 && f.first_token_ns > 0;
    double prompt_ms = any ? (double)(f.first_token_ns - begin_ns) / MR_NS_PER_MS : 0;
    double predicted_ms = any ? (double)(end_ns - f.first_token_ns) / MR_NS_PER_MS : 0;
    int64_t prompt_n = f.prompt_tokens - f.cached_tokens, predicted_n = f.generated_tokens;
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "cache_n", (json_int_t)f.cached_tokens,
                     "prompt_n", (json_int_t)prompt_n, "prompt_ms", prompt_ms, "prompt_per_token_ms",
                     prompt_n > 0 ? prompt_ms / (double)prompt_n : 0.0, "prompt_per_second",
                     prompt_ms > 0 ? (double)prompt_n * 1e3 / prompt_ms : 0.0, "predicted_n", (json_int_t)predicted_n,
                     "predicted_ms", predicted_ms, "predicted_per_token_ms",
                     predicted_n > 0 ? predicted_ms / (double)predicted_n : 0.0, "predicted_per_second",
                     predicted_ms > 0 ? (double)predicted_n * 1e3 / predicted_ms : 0.0);
}

bool api_answer_whole(mr_api_call *call, mr_text_buf *out) {
    if (call->request.endpoint == API_EMBEDDINGS)
        return mr_api_json_write(api_embeddings_answer(call), out);
    if (call->request.endpoint == API_RERANK)
        return mr_api_json_write(api_rerank_answer(call), out);
    bool is_chat = call->request.endpoint == API_CHAT_COMPLETIONS;
    json_t *choices = json_array();
    for (int32_t i = 0; i < call->n_choices; i++)
        choices = mr_api_json_add(choices, api_choice_whole(&call->choices[i]));
    json_t *answer = envelope(call, is_chat ? "chat.completion" : "text_completion", choices);
    answer = mr_api_json_put(answer, "usage", usage(call));
    return mr_api_json_write(mr_api_json_put(answer, "timings", timings(call)), out);
}

static bool event(json_t *value, mr_text_buf *out) {
    size_t before = out->len;
    if (!mr_text_buf_append(out, "data: ", 6)) {
        json_decref(value);
        return false;
    }
    if (mr_api_json_write(value, out) && mr_text_buf_append(out, "\n\n", 2))
        return true;
    out->len = before;
    return false;
}

static json_t *chunk(const mr_api_call *call, json_t *choice) {
    bool is_chat = call->request.endpoint == API_CHAT_COMPLETIONS;
    json_t *value = envelope(call, is_chat ? "chat.completion.chunk" : "text_completion",
                             choice ? mr_api_json_add(json_array(), choice) : NULL);
    if (call->request.usage_in_chunks)
        return mr_api_json_put(value, "usage", usage(call));
    return call->request.include_usage ? mr_api_json_put(value, "usage", json_null()) : value;
}

bool api_answer_role(mr_api_call *call, api_choice *c, mr_text_buf *out) {
    return !c->is_chat || c->role_said || event(chunk(call, api_choice_role(c)), out);
}

bool api_answer_events(mr_api_call *call, api_choice *c, mr_text_buf *out) {
    if (api_choice_has_news(c) && !event(chunk(call, api_choice_news(c)), out))
        return false;
    if (!api_choice_finish(c))
        return true;
    json_t *last = chunk(call, api_choice_end(c));
    int32_t n_running = 0;
    for (int32_t i = 0; i < call->n_choices; i++)
        n_running += call->choices[i].finish == MR_FINISH_NONE;
    return event(n_running == 0 ? mr_api_json_put(last, "timings", timings(call)) : last, out);
}

static bool write_usage(const mr_api_call *call, mr_text_buf *out) {
    const char *object = call->request.endpoint == API_CHAT_COMPLETIONS ? "chat.completion.chunk" : "text_completion";
    return event(mr_api_json_put(envelope(call, object, json_array()), "usage", usage(call)), out);
}

static bool write_error(const mr_api_call *call, mr_text_buf *out) {
    return mr_text_buf_append(out, "data: ", 6) && mr_api_json_write_error(&call->error, out) &&
           mr_text_buf_append(out, "\n\n", 2);
}

bool api_answer_last(mr_api_call *call, mr_text_buf *out) {
    static const char done[] = "data: [DONE]\n\n";
    if (call->error.status ? !write_error(call, out) : call->request.include_usage && !write_usage(call, out))
        return false;
    return mr_text_buf_append(out, done, sizeof done - 1);
}
