/* coordinator/serving/chat/chat_template_messages.c - changes messages of OpenAI's form into the form that a template
 * can read: contents, arguments of tool calls, and roles. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "coordinator/serving/chat/chat_template_internal.h"
#include "coordinator/serving/chat/chat_tools.h"

typedef struct adapter {
    const chat_abilities *can;
    size_t at; /* the index of the present message, for errors */
    mr_err *err;
} adapter;

static mr_status no_memory(const adapter *a) {
    return mr_err_set(a->err, MR_E_NO_MEMORY, "no memory for messages");
}

/* Sets a key to a new value; a value of NULL means no memory. */
static mr_status set(const adapter *a, json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0 ? MR_OK : no_memory(a);
}

/* ---- contents ---- */

/* Joins the texts of the parts, one line each. */
static mr_status join_parts(const adapter *a, const json_t *parts, mr_text_buf *out) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        bool is_text = type && (strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0);
        if (!json_is_object(part) || !type)
            return mr_err_set(a->err, MR_E_INVALID, "messages[%zu].content[%zu]: not a content part", a->at, i);
        if (!is_text && strcmp(type, "refusal") != 0)
            return mr_err_set(a->err, MR_E_UNSUPPORTED,
                              "messages[%zu].content[%zu]: a part of type '%.40s'; only text is read", a->at, i, type);
        if (!is_text)
            text = json_object_get(part, "refusal");
        if (!json_is_string(text))
            return mr_err_set(a->err, MR_E_INVALID, "messages[%zu].content[%zu].text: not a string", a->at, i);
        if ((i && !mr_text_buf_append(out, "\n", 1)) ||
            !mr_text_buf_append(out, json_string_value(text), json_string_length(text)))
            return no_memory(a);
    }
    return mr_text_buf_reserve(out, 0) ? MR_OK : no_memory(a);
}

/* Sets the content to a text, or to a list of one part where the template reads lists alone. */
static mr_status set_text(const adapter *a, json_t *message, const char *text, size_t n) {
    json_t *string = json_stringn(text, n);
    if (string && !a->can->strings)
        string = json_pack("[{s:s, s:o}]", "type", "text", "text", string);
    return set(a, message, "content", string);
}

static mr_status adapt_content(const adapter *a, json_t *message) {
    const json_t *content = json_object_get(message, "content");
    bool has_calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
    if (!content || json_is_null(content) ||
        (has_calls && json_string_length(content) == 0 && json_is_string(content))) {
        const char *role = json_string_value(json_object_get(message, "role"));
        if (!content && strcmp(role, "assistant") != 0)
            return mr_err_set(a->err, MR_E_INVALID, "messages[%zu].content: missing", a->at);
        bool null = has_calls && a->can->null_content && (!a->can->empty_content || !json_is_string(content));
        return null ? set(a, message, "content", json_null()) : set_text(a, message, "", 0);
    }
    if (json_is_string(content))
        return a->can->strings ? MR_OK : set_text(a, message, json_string_value(content), json_string_length(content));
    if (!json_is_array(content))
        return mr_err_set(a->err, MR_E_INVALID, "messages[%zu].content: must be a string or an array", a->at);
    mr_text_buf text = {0};
    mr_status status = join_parts(a, content, &text);
    if (status == MR_OK && !a->can->parts)
        status = set_text(a, message, text.data, text.len);
    mr_text_buf_deinit(&text);
    return status;
}

/* ---- tool calls ---- */

/* Changes arguments into the form that the template reads. Text that is no JSON object stays text. */
static mr_status adapt_arguments(const adapter *a, json_t *function) {
    const json_t *arguments = json_object_get(function, "arguments");
    json_t *changed = NULL;
    json_error_t error;
    if (a->can->object_tool_calls && json_is_string(arguments)) {
        changed = json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_DECODE_ANY, &error);
        if (!json_is_object(changed)) {
            json_decref(changed);
            return MR_OK;
        }
    } else if (!a->can->object_tool_calls && json_is_object(arguments)) {
        char *text = json_dumps(arguments, 0);
        changed = text ? json_string(text) : NULL;
        free(text);
        if (!changed)
            return no_memory(a);
    } else {
        return MR_OK;
    }
    return set(a, function, "arguments", changed);
}

static mr_status adapt_calls(const adapter *a, json_t *message) {
    const json_t *calls = json_object_get(message, "tool_calls");
    if (!calls || json_is_null(calls))
        return MR_OK;
    if (!json_is_array(calls))
        return mr_err_set(a->err, MR_E_INVALID, "messages[%zu].tool_calls: must be an array", a->at);
    json_t *copy = json_deep_copy(calls);
    if (set(a, message, "tool_calls", copy) != MR_OK)
        return no_memory(a);
    for (size_t i = 0; i < json_array_size(copy); i++) {
        json_t *function = json_object_get(json_array_get(copy, i), "function");
        if (!json_is_string(json_object_get(function, "name")))
            return mr_err_set(a->err, MR_E_INVALID, "messages[%zu].tool_calls[%zu].function.name: must be a string",
                              a->at, i);
        mr_status status = adapt_arguments(a, function);
        if (status != MR_OK)
            return status;
    }
    return MR_OK;
}

/* ---- roles ---- */

static mr_status adapt_role(const adapter *a, json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role)
        return mr_err_set(a->err, MR_E_INVALID, "messages[%zu].role: must be a string", a->at);
    if (strcmp(role, "developer") == 0 && !a->can->developer)
        return set(a, message, "role", json_string("system"));
    return MR_OK;
}

static bool has_role(const json_t *message, const char *role) {
    return strcmp(json_string_value(json_object_get(message, "role")), role) == 0;
}

/* For a template without the role "system": puts the content of the system message in front of the next message of the
 * user. */
static mr_status merge_system(adapter *a, json_t *messages) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *next = json_array_get(messages, i + 1);
        const json_t *text = json_object_get(message, "content"), *behind = json_object_get(next, "content");
        a->at = i;
        if (!has_role(message, "system"))
            continue;
        if (!next || !has_role(next, "user") || !json_is_string(text) || !json_is_string(behind)) {
            if (set(a, message, "role", json_string("user")) != MR_OK)
                return no_memory(a);
            continue;
        }
        json_t *both = json_sprintf("%s\n\n%s", json_string_value(text), json_string_value(behind));
        if (set(a, next, "content", both) != MR_OK || json_array_remove(messages, i) != 0)
            return no_memory(a);
    }
    return MR_OK;
}

/* Writes tool calls behind the content, for a template that leaves them out. */
static mr_status write_calls(const adapter *a, json_t *message) {
    const json_t *calls = json_object_get(message, "tool_calls"), *content = json_object_get(message, "content");
    mr_text_buf text = {0};
    if (!a->can->leaves_out_calls || !json_array_size(calls) || !json_is_string(content))
        return MR_OK;
    mr_status status = mr_text_buf_append(&text, json_string_value(content), json_string_length(content))
                           ? chat_tools_write(a->can->format, calls, &text, a->err)
                           : no_memory(a);
    if (status == MR_OK)
        status = set_text(a, message, text.data, text.len);
    mr_text_buf_deinit(&text);
    return status;
}

static mr_status adapt_message(const adapter *a, json_t *message) {
    mr_status status = adapt_role(a, message);
    if (status == MR_OK)
        status = adapt_calls(a, message);
    if (status == MR_OK)
        status = adapt_content(a, message);
    return status == MR_OK ? write_calls(a, message) : status;
}

mr_status chat_messages_adapt(const chat_abilities *can, const json_t *messages, json_t **out, mr_err *err) {
    adapter a = {.can = can, .err = err};
    mr_status status = MR_OK;
    if (!json_is_array(messages))
        return mr_err_set(err, MR_E_INVALID, "messages: must be an array");
    json_t *list = json_array();
    if (!list)
        return no_memory(&a);
    for (; status == MR_OK && a.at < json_array_size(messages); a.at++) {
        const json_t *message = json_array_get(messages, a.at);
        json_t *copy = json_is_object(message) ? json_copy((json_t *)(uintptr_t)message) : NULL;
        if (!json_is_object(message))
            status = mr_err_set(err, MR_E_INVALID, "messages[%zu]: must be an object", a.at);
        else if (json_array_append_new(list, copy) != 0)
            status = no_memory(&a);
        else
            status = adapt_message(&a, copy);
    }
    if (status == MR_OK && !can->system)
        status = merge_system(&a, list);
    if (status == MR_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}
