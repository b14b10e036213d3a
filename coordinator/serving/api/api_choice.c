/* coordinator/serving/api/api_choice.c - collects what one choice generates, and makes JSON of a choice: as a whole, or
 * of the part that has not been sent. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/api/api_choice.h"

#include "coordinator/serving/wire/api_json.h"
#include "engine/base/mem.h"

static bool add_tool_call(api_choice *c, const mr_chat_delta *delta) {
    if (c->n_tool_calls == c->cap_tool_calls) {
        int32_t cap = c->cap_tool_calls ? 2 * c->cap_tool_calls : 4;
        api_tool_call *calls = mr_realloc(c->tool_calls, (size_t)cap * sizeof *calls);
        if (!calls)
            return false;
        c->tool_calls = calls;
        c->cap_tool_calls = cap;
    }
    api_tool_call *call = &c->tool_calls[c->n_tool_calls++];
    *call = (api_tool_call){.id = mr_api_json_text(delta->id), .name = mr_api_json_text(delta->text)};
    return call->id && call->name;
}

static mr_status take_delta(void *ctx, const mr_chat_delta *delta, mr_err *err) {
    api_choice *c = ctx;
    bool ok = true;
    if (c->one_tool_call && delta->tool_call > 0)
        return MR_OK;
    switch (delta->kind) {
    case CHAT_CONTENT:
        ok = mr_text_buf_append(&c->text, delta->text.data, delta->text.len);
        break;
    case CHAT_REASONING:
        ok = mr_text_buf_append(&c->reasoning, delta->text.data, delta->text.len);
        break;
    case CHAT_TOOL_BEGIN:
        ok = add_tool_call(c, delta);
        break;
    case CHAT_TOOL_ARGUMENTS:
        ok = mr_text_buf_append(&c->tool_calls[c->n_tool_calls - 1].arguments, delta->text.data, delta->text.len);
        break;
    case CHAT_TOOL_END:
        break;
    }
    return ok ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the answer");
}

bool api_choice_open_parser(api_choice *c, const mr_chat_output_desc *desc) {
    mr_chat_output_desc own = *desc;
    own.on_delta = take_delta;
    own.ctx = c;
    return mr_chat_output_create(&own, &c->parser, NULL) == MR_OK;
}

void api_choice_deinit(api_choice *c) {
    mr_chat_output_destroy(c->parser);
    mr_text_buf_deinit(&c->text);
    mr_text_buf_deinit(&c->reasoning);
    for (int32_t i = 0; i < c->n_tool_calls; i++) {
        json_decref(c->tool_calls[i].id);
        json_decref(c->tool_calls[i].name);
        mr_text_buf_deinit(&c->tool_calls[i].arguments);
    }
    mr_free(c->tool_calls);
    json_decref(c->logprobs);
    *c = (api_choice){0};
}

static bool take_text(api_choice *c, const mr_piece *piece) {
    if (!c->parser)
        return mr_text_buf_append(&c->text, piece->text.data, piece->text.len);
    if (piece->text.len > 0 && mr_chat_output_push(c->parser, piece->text, NULL) != MR_OK)
        return false;
    return piece->finish == MR_FINISH_NONE || mr_chat_output_end(c->parser, NULL) == MR_OK;
}

bool api_choice_take(api_choice *c, const mr_piece *piece) {
    c->n_prompt = piece->n_prompt;
    c->n_cached = piece->n_cached;
    c->n_generated = piece->n_generated;
    c->begin_ns = piece->begin_ns;
    c->first_token_ns = piece->first_token_ns;
    c->token_ns = piece->token_ns;
    c->finish = piece->finish;
    if (!take_text(c, piece))
        return false;
    for (int32_t i = 0; i < piece->n_tokens && c->n_top_logprobs >= 0; i++) {
        const mr_piece_token *token = &piece->tokens[i];
        bool is_listed = !c->is_chat || !token->is_cut; /* chats list the tokens of the content alone */
        if (is_listed && !api_logprobs_add(c, token, c->echo_bytes + token->text_offset))
            return false;
    }
    return true;
}

static bool tool_call_has_news(const api_tool_call *call) {
    return !call->begun || call->arguments.len > call->n_said;
}

bool api_choice_has_news(const api_choice *c) {
    bool news = c->text.len > c->n_text_said || c->reasoning.len > c->n_reasoning_said || c->logprobs;
    for (int32_t i = 0; i < c->n_tool_calls && !news; i++)
        news = tool_call_has_news(&c->tool_calls[i]);
    return news;
}

const char *api_choice_finish(const api_choice *c) {
    switch (c->finish) {
    case MR_FINISH_STOP:
        return c->n_tool_calls > 0 ? "tool_calls" : "stop";
    case MR_FINISH_LENGTH:
        return "length";
    default:
        return NULL;
    }
}

/* The part of a text that has not been sent, which then counts as sent. */
static json_t *rest(const mr_text_buf *text, size_t *said) {
    json_t *value = mr_api_json_text((mr_str){text->data ? text->data + *said : "", text->len - *said});
    *said = text->len;
    return value;
}

static json_t *take_logprobs(api_choice *c) {
    json_t *value = c->logprobs ? c->logprobs : json_null();
    c->logprobs = NULL;
    return value;
}

/* The JSON of a tool call. After the first chunk of a tool call, chunks hold further bytes of the arguments alone. */
static json_t *tool_call(api_tool_call *call) {
    json_t *function = json_pack("{s:o}", "arguments", rest(&call->arguments, &call->n_said));
    if (call->begun)
        return json_pack("{s:o}", "function", function);
    call->begun = true;
    return json_pack("{s:O, s:s, s:o}", "id", call->id, "type", "function", "function",
                     mr_api_json_put(function, "name", json_incref(call->name)));
}

/* The list of tool calls. In a stream: those that have unsent parts, each with its index. */
static json_t *tool_call_list(api_choice *c, bool streams) {
    json_t *list = json_array();
    for (int32_t i = 0; i < c->n_tool_calls; i++) {
        if (streams && tool_call_has_news(&c->tool_calls[i]))
            list = mr_api_json_add(list, mr_api_json_put(tool_call(&c->tool_calls[i]), "index", json_integer(i)));
        else if (!streams)
            list = mr_api_json_add(list, tool_call(&c->tool_calls[i]));
    }
    return list;
}

static json_t *message(api_choice *c) {
    bool silent = c->text.len == 0 && (c->n_tool_calls > 0 || c->only_calls);
    json_t *m = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                          silent ? json_null() : rest(&c->text, &c->n_text_said), "refusal");
    if (c->reasoning.len > 0)
        m = mr_api_json_put(m, "reasoning_content", rest(&c->reasoning, &c->n_reasoning_said));
    return c->n_tool_calls > 0 ? mr_api_json_put(m, "tool_calls", tool_call_list(c, false)) : m;
}

json_t *api_choice_whole(api_choice *c) {
    if (c->n_top_logprobs >= 0 && !api_logprobs_open(c)) /* the lists are there even if a stop text has left no token */
        return NULL;
    json_t *said = c->is_chat ? message(c) : rest(&c->text, &c->n_text_said);
    return json_pack("{s:i, s:o, s:o, s:s?}", "index", c->index, c->is_chat ? "message" : "text", said, "logprobs",
                     take_logprobs(c), "finish_reason", api_choice_finish(c));
}

static json_t *delta(api_choice *c) {
    json_t *d = json_object();
    bool calls = false;
    if (c->reasoning.len > c->n_reasoning_said)
        d = mr_api_json_put(d, "reasoning_content", rest(&c->reasoning, &c->n_reasoning_said));
    if (c->text.len > c->n_text_said)
        d = mr_api_json_put(d, "content", rest(&c->text, &c->n_text_said));
    for (int32_t i = 0; i < c->n_tool_calls && !calls; i++)
        calls = tool_call_has_news(&c->tool_calls[i]);
    return calls ? mr_api_json_put(d, "tool_calls", tool_call_list(c, true)) : d;
}

static json_t *chunk(api_choice *c, json_t *said, const char *finish) {
    return json_pack("{s:i, s:o, s:o, s:s?}", "index", c->index, c->is_chat ? "delta" : "text", said, "logprobs",
                     take_logprobs(c), "finish_reason", finish);
}

json_t *api_choice_news(api_choice *c) {
    return chunk(c, c->is_chat ? delta(c) : rest(&c->text, &c->n_text_said), NULL);
}

json_t *api_choice_end(api_choice *c) {
    return chunk(c, c->is_chat ? json_object() : json_string(""), api_choice_finish(c));
}

json_t *api_choice_role(api_choice *c) {
    c->role_said = true;
    return json_pack("{s:i, s:{s:s, s:s?}, s:n, s:n}", "index", c->index, "delta", "role", "assistant", "content",
                     c->only_calls ? NULL : "", "logprobs", "finish_reason");
}
