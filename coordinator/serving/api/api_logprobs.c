/* coordinator/serving/api/api_logprobs.c - log-probabilities in OpenAI's two forms: for chats a list of tokens with
 * their bytes, for completions four lists of the same length. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>

#include "coordinator/serving/api/api_choice.h"
#include "coordinator/serving/wire/api_json.h"
#include "engine/text/detok.h"

/* JSON has no infinities: an impossible token gets -9999, as in OpenAI's answers. */
static json_t *number(float logprob) {
    return json_real(logprob > -9999.0F ? (double)logprob : -9999.0);
}

static mr_str token_bytes(const api_choice *c, int32_t id) {
    mr_str bytes = {"", 0};
    if (!mr_tokenizer_piece(c->tokenizer, id, &bytes))
        bytes = (mr_str){"", 0}; /* a row that pads the output matrix */
    return bytes;
}

static json_t *byte_list(mr_str bytes) {
    json_t *list = json_array();
    for (size_t i = 0; i < bytes.len; i++)
        list = mr_api_json_add(list, json_integer((unsigned char)bytes.data[i]));
    return list;
}

static json_t *chat_token(const api_choice *c, int32_t id, float logprob) {
    mr_str bytes = token_bytes(c, id);
    return json_pack("{s:o, s:o, s:o}", "token", mr_api_json_text(bytes), "logprob", number(logprob), "bytes",
                     byte_list(bytes));
}

static bool add_to_chat(api_choice *c, const mr_piece_token *token) {
    json_t *top = json_array();
    for (int32_t i = 0; i < token->n_top; i++)
        top = mr_api_json_add(top, chat_token(c, token->top[i].id, token->top[i].logprob));
    json_t *entry = mr_api_json_put(chat_token(c, token->id, token->logprob), "top_logprobs", top);
    return json_array_append_new(json_object_get(c->logprobs, "content"), entry) == 0;
}

/* The text of a token as the key of an object. Keys have to differ, so a token that is a part of a character is written
 * as its bytes, as in OpenAI's answers. */
static json_t *completion_text(mr_str bytes) {
    json_t *value = json_stringn(bytes.data, bytes.len);
    if (value)
        return value;
    mr_text_buf text = {0};
    bool ok = mr_text_buf_append(&text, "bytes:", 6);
    for (size_t i = 0; i < bytes.len && ok; i++) {
        char hex[8];
        ok = mr_text_buf_append(&text, hex, (size_t)snprintf(hex, sizeof hex, "\\x%02x", (unsigned char)bytes.data[i]));
    }
    value = ok ? json_stringn(text.data, text.len) : NULL;
    mr_text_buf_deinit(&text);
    return value;
}

/* Converts an offset in c->text from bytes to characters, which clients count in. Offsets must not fall from call to
 * call: the count goes on from the offset before. */
static size_t chars_before(api_choice *c, size_t offset) {
    for (; c->offset_bytes < offset && c->offset_bytes < c->text.len; c->offset_bytes++)
        c->offset_chars += ((unsigned char)c->text.data[c->offset_bytes] & 0xC0) != 0x80;
    return c->offset_chars;
}

static json_t *top_object(const api_choice *c, const mr_piece_token *token) {
    json_t *top = json_object();
    for (int32_t i = 0; i < token->n_top; i++) {
        json_t *key = completion_text(token_bytes(c, token->top[i].id));
        if (!key || !json_object_get(top, json_string_value(key))) /* of tokens with one text, the likeliest counts */
            top = mr_api_json_put(top, key ? json_string_value(key) : "", key ? number(token->top[i].logprob) : NULL);
        json_decref(key);
    }
    return top;
}

static bool add_to_completion(api_choice *c, const mr_piece_token *token, size_t offset) {
    bool none = isnan(token->logprob); /* the first token of a prompt has no log-probability */
    return json_array_append_new(json_object_get(c->logprobs, "tokens"), completion_text(token_bytes(c, token->id))) ==
               0 &&
           json_array_append_new(json_object_get(c->logprobs, "token_logprobs"),
                                 none ? json_null() : number(token->logprob)) == 0 &&
           json_array_append_new(json_object_get(c->logprobs, "top_logprobs"),
                                 none ? json_null() : top_object(c, token)) == 0 &&
           json_array_append_new(json_object_get(c->logprobs, "text_offset"),
                                 json_integer((json_int_t)chars_before(c, offset))) == 0;
}

bool api_logprobs_open(api_choice *c) {
    if (!c->logprobs && c->is_chat)
        c->logprobs = json_pack("{s:[], s:n}", "content", "refusal");
    else if (!c->logprobs)
        c->logprobs = json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
    return c->logprobs != NULL;
}

bool api_logprobs_add(api_choice *c, const mr_piece_token *token, size_t offset) {
    if (!api_logprobs_open(c))
        return false;
    return c->is_chat ? add_to_chat(c, token) : add_to_completion(c, token, offset);
}

/* Decodes the prompt again to find the offsets of its tokens in the text. */
bool api_choice_take_prompt(api_choice *c, const mr_piece *piece) {
    mr_text_buf text = {0};
    mr_detok detok;
    bool ok = true;
    mr_detok_init(&detok, c->tokenizer, 0);
    for (int32_t i = 0; i < piece->n_tokens && ok; i++)
        ok = api_logprobs_add(c, &piece->tokens[i], text.len < c->echo_bytes ? text.len : c->echo_bytes) &&
             mr_detok_push(&detok, piece->tokens[i].id, &text, NULL) == MR_OK;
    mr_text_buf_deinit(&text);
    return ok;
}
