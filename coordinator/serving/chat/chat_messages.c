/* coordinator/serving/chat/chat_messages.c - reads messages as clients send them, and brings them into the one form
 * that chat_messages.h describes. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_messages.h"

#include <string.h>

#include "coordinator/serving/json/json.h"

typedef struct reader {
    size_t at; /* the index of the present message, for errors */
    mr_err *err;
} reader;

static mr_status no_memory(const reader *r) {
    return mr_err_set(r->err, MR_E_NO_MEMORY, "no memory for messages");
}

static mr_status set(const reader *r, json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0 ? MR_OK : no_memory(r);
}

const char *chat_role(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

bool chat_is_role(const json_t *message, const char *role) {
    return strcmp(chat_role(message), role) == 0;
}

/* ---- nulls ---- */

/* Whether the keyword has a value, or a list of values, in which null and objects with nulls mean themselves. */
static bool has_values(const char *keyword) {
    static const char *const NAMES[] = {"default", "const", "enum", "example", "examples"};
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++)
        if (strcmp(keyword, NAMES[i]) == 0)
            return true;
    return false;
}

json_t *chat_without_nulls(const json_t *value) {
    json_t *copy = json_is_object(value) ? json_object() : json_is_array(value) ? json_array() : NULL, *item;
    const char *key;
    size_t i;
    bool ok = copy != NULL;
    if (!json_is_object(value) && !json_is_array(value))
        return json_incref((json_t *)(uintptr_t)value);
    json_object_foreach((json_t *)(uintptr_t)value, key, item) {
        bool is_value = strcmp(key, "default") == 0 || strcmp(key, "const") == 0;
        if (ok && (is_value || !json_is_null(item)))
            ok = json_object_set_new_nocheck(copy, key,
                                             has_values(key) ? json_incref(item) : chat_without_nulls(item)) == 0;
    }
    json_array_foreach(value, i, item) ok = ok && json_array_append_new(copy, chat_without_nulls(item)) == 0;
    if (ok)
        return copy;
    json_decref(copy);
    return NULL;
}

/* A copy of an object without its members that are null. NULL: it is no object, or there is no memory. */
static json_t *members(const json_t *object) {
    json_t *copy = json_is_object(object) ? json_copy((json_t *)(uintptr_t)object) : NULL, *value;
    const char *key;
    void *next;
    json_object_foreach_safe(copy, next, key, value) if (json_is_null(value)) json_object_del(copy, key);
    return copy;
}

/* ---- contents ---- */

bool chat_content_append(const json_t *content, mr_text_buf *out) {
    if (json_is_string(content))
        return mr_text_buf_append(out, json_string_value(content), json_string_length(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *text = json_object_get(json_array_get(content, i), "text");
        if ((i && !mr_text_buf_append(out, "\n", 1)) ||
            !mr_text_buf_append(out, json_string_value(text), json_string_length(text)))
            return false;
    }
    return mr_text_buf_reserve(out, 0);
}

/* Appends reasoning: a text, a part with a text, or a list of these. JSON of clients is not nested deeply. */
static bool append_reasoning(const json_t *value, mr_text_buf *out) {
    static const char *const KEYS[] = {"thinking", "text", "summary", "reasoning", "content"};
    const json_t *part, *object = json_is_object(value) ? value : NULL;
    size_t i;
    bool ok = true;
    for (i = 0; value == object && i < sizeof KEYS / sizeof KEYS[0]; i++)
        value = json_object_get(object, KEYS[i]) ? json_object_get(object, KEYS[i]) : object;
    if (json_string_length(value))
        return (!out->len || mr_text_buf_append(out, "\n", 1)) &&
               mr_text_buf_append(out, json_string_value(value), json_string_length(value));
    json_array_foreach(value, i, part) ok = ok && append_reasoning(part, out);
    return ok;
}

/* Reads one part: its text goes to `texts`, reasoning to `reasoning`. */
static mr_status read_part(const reader *r, const json_t *part, size_t i, json_t *texts, mr_text_buf *reasoning) {
    static const char *const TEXTS[] = {"text", "input_text", "output_text", "refusal"};
    const char *type = json_string_value(json_object_get(part, "type")), *name = NULL;
    if (!type)
        return mr_err_set(r->err, MR_E_INVALID, "messages[%zu].content[%zu]: not a content part", r->at, i);
    if (strcmp(type, "thinking") == 0 || strcmp(type, "reasoning") == 0)
        return append_reasoning(part, reasoning) ? MR_OK : no_memory(r);
    for (size_t k = 0; k < sizeof TEXTS / sizeof TEXTS[0] && !name; k++)
        if (strcmp(type, TEXTS[k]) == 0)
            name = strcmp(type, "refusal") == 0 ? "refusal" : "text";
    if (!name)
        return mr_err_set(r->err, MR_E_UNSUPPORTED,
                          "messages[%zu].content[%zu]: a part of type '%.40s'; only text is read", r->at, i, type);
    json_t *text = json_object_get(part, name);
    if (!json_is_string(text))
        return mr_err_set(r->err, MR_E_INVALID, "messages[%zu].content[%zu].text: not a string", r->at, i);
    return json_array_append_new(texts, json_pack("{s:s, s:O}", "type", "text", "text", text)) == 0 ? MR_OK
                                                                                                    : no_memory(r);
}

static mr_status read_parts(const reader *r, const json_t *parts, json_t *message, mr_text_buf *reasoning) {
    json_t *texts = json_array();
    mr_status status = texts ? MR_OK : no_memory(r);
    for (size_t i = 0; status == MR_OK && i < json_array_size(parts); i++)
        status = read_part(r, json_array_get(parts, i), i, texts, reasoning);
    if (status == MR_OK)
        status = set(r, message, "content", json_incref(texts));
    json_decref(texts);
    return status;
}

/* given: the message as it came, whose content may be null. */
static mr_status read_content(const reader *r, const json_t *given, json_t *message, mr_text_buf *reasoning) {
    const json_t *content = json_object_get(given, "content");
    bool is_answer = chat_is_role(message, "assistant");
    if (!content && !is_answer)
        return mr_err_set(r->err, MR_E_INVALID, "messages[%zu].content: missing", r->at);
    if (!content || json_is_string(content))
        return MR_OK;
    if (json_is_null(content))
        return is_answer ? MR_OK : set(r, message, "content", json_string(""));
    if (!json_is_array(content))
        return mr_err_set(r->err, MR_E_INVALID, "messages[%zu].content: must be a string or an array", r->at);
    mr_status status = read_parts(r, content, message, reasoning);
    if (status != MR_OK || json_array_size(json_object_get(message, "content")))
        return status;
    return is_answer ? (json_object_del(message, "content"), MR_OK) : set(r, message, "content", json_string(""));
}

/* Gives reasoning its one name. The first of its names that has a text counts. */
static mr_status read_reasoning(const reader *r, json_t *message, mr_text_buf *reasoning) {
    static const char *const NAMES[] = {"reasoning_content", "reasoning", "thinking", "thought", "reasoning_details"};
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        if (!reasoning->len && !append_reasoning(json_object_get(message, NAMES[i]), reasoning))
            return no_memory(r);
        json_object_del(message, NAMES[i]);
    }
    return reasoning->len ? set(r, message, "reasoning", json_stringn(reasoning->data, reasoning->len)) : MR_OK;
}

/* ---- calls ---- */

static mr_status read_call(const reader *r, const json_t *given, size_t i, json_t *calls) {
    const json_t *name = json_object_get(json_object_get(given, "function"), "name");
    if (!json_is_string(name))
        return mr_err_set(r->err, MR_E_INVALID, "messages[%zu].tool_calls[%zu].function.name: must be a string", r->at,
                          i);
    json_t *call = members(given), *function = members(json_object_get(given, "function"));
    json_t *arguments = json_object_get(function, "arguments");
    bool is_whole = false, ok = call && function;
    ok = ok && (json_object_del(function, "text"),
                !json_is_string(arguments) || json_object_set(function, "text", arguments) == 0);
    ok = ok && json_object_set_new(function, "arguments", chat_arguments_read(arguments, &is_whole)) == 0;
    if (ok && !is_whole)
        json_object_del(function, "text");
    ok = ok && json_object_set(call, "function", function) == 0;
    json_decref(function);
    return json_array_append_new(calls, ok ? call : (json_decref(call), NULL)) == 0 ? MR_OK : no_memory(r);
}

static mr_status read_calls(const reader *r, json_t *message) {
    json_t *given = json_object_get(message, "tool_calls"), *old = json_object_get(message, "function_call");
    if (!given && old) { /* of the API before tools */
        given = json_pack("[{s:s, s:O}]", "type", "function", "function", old);
        if (!given || json_object_set_new(message, "tool_calls", given) != 0)
            return no_memory(r);
    }
    json_object_del(message, "function_call");
    if (!given)
        return MR_OK;
    if (!json_is_array(given))
        return mr_err_set(r->err, MR_E_INVALID, "messages[%zu].tool_calls: must be an array", r->at);
    if (!json_array_size(given)) {
        json_object_del(message, "tool_calls");
        return MR_OK;
    }
    json_t *calls = json_array();
    mr_status status = calls ? MR_OK : no_memory(r);
    for (size_t i = 0; status == MR_OK && i < json_array_size(given); i++)
        status = read_call(r, json_array_get(given, i), i, calls);
    if (status == MR_OK)
        status = set(r, message, "tool_calls", json_incref(calls));
    json_decref(calls);
    return status;
}

static mr_status read_message(const reader *r, const json_t *given, json_t *message) {
    mr_text_buf reasoning = {0};
    if (!json_is_string(json_object_get(message, "role")))
        return mr_err_set(r->err, MR_E_INVALID, "messages[%zu].role: must be a string", r->at);
    mr_status status = chat_is_role(message, "function") ? set(r, message, "role", json_string("tool")) : MR_OK;
    if (status == MR_OK)
        status = read_calls(r, message);
    if (status == MR_OK)
        status = read_content(r, given, message, &reasoning);
    if (status == MR_OK)
        status = read_reasoning(r, message, &reasoning);
    mr_text_buf_deinit(&reasoning);
    return status;
}

mr_status chat_messages_read(const json_t *messages, json_t **out, mr_err *err) {
    reader r = {.err = err};
    if (!json_is_array(messages))
        return mr_err_set(err, MR_E_INVALID, "messages: must be an array");
    json_t *list = json_array();
    mr_status status = list ? MR_OK : no_memory(&r);
    for (; status == MR_OK && r.at < json_array_size(messages); r.at++) {
        const json_t *given = json_array_get(messages, r.at);
        json_t *message = members(given);
        if (!json_is_object(given))
            status = mr_err_set(err, MR_E_INVALID, "messages[%zu]: must be an object", r.at);
        else if (json_array_append_new(list, message) != 0)
            status = no_memory(&r);
        else
            status = read_message(&r, given, message);
    }
    if (status == MR_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}
