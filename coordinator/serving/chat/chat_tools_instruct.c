/* coordinator/serving/chat/chat_tools_instruct.c - rewrites a conversation with tools for a template that knows no
 * tools: their descriptions become part of the system message, and calls and results become plain text. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/chat/chat_schema.h"
#include "coordinator/serving/chat/chat_tools.h"

static const char BEFORE[] =
    "You can call functions. Each line between <tools> and </tools> describes one, with a JSON schema "
    "of its arguments:\n<tools>\n";
static const char BEHIND[] =
    "</tools>\nTo call one, answer with a JSON object that has its name and its arguments, between "
    "<tool_call> and </tool_call>; several calls stand one after another:\n<tool_call>\n"
    "{\"name\": \"the function\", \"arguments\": {\"an argument\": \"its value\"}}\n</tool_call>";

static bool put(mr_text_buf *b, const char *text) {
    return mr_text_buf_append(b, text, strlen(text));
}

static bool put_json(mr_text_buf *b, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    bool ok = text && put(b, text);
    free(text);
    return ok;
}

/* Appends the text of a content, which is a string or a list of parts. */
static bool put_content(mr_text_buf *b, const json_t *content) {
    const char *text = json_string_value(content);
    const json_t *part;
    size_t i;
    bool ok = !text || put(b, text);
    json_array_foreach(content, i, part) {
        text = json_string_value(json_object_get(part, "text"));
        ok = ok && (!text || put(b, text));
    }
    return ok;
}

static const char *role_of(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

/* Makes {"role": role, "content": the text} and frees the text. */
static json_t *message_of(const char *role, mr_text_buf *text, bool ok) {
    json_t *m = ok ? json_pack("{s:s, s:s%}", "role", role, "content", text->data ? text->data : "", text->len) : NULL;
    mr_text_buf_deinit(text);
    return m;
}

static bool put_calls(mr_text_buf *b, const json_t *calls) {
    const json_t *call;
    size_t i;
    bool ok = true;
    json_array_foreach(calls, i, call) {
        const json_t *f = chat_tool_function(call), *args = json_object_get(f, "arguments");
        const char *text = json_string_value(args);
        ok = ok && put(b, b->len ? "\n<tool_call>\n{\"name\": " : "<tool_call>\n{\"name\": ") &&
             put_json(b, json_object_get(f, "name")) && put(b, ", \"arguments\": ") &&
             (text   ? put(b, text)
              : args ? put_json(b, args)
                     : put(b, "{}")) &&
             put(b, "}\n</tool_call>");
    }
    return ok;
}

static json_t *with_calls(const json_t *message) {
    mr_text_buf text = {0};
    return message_of("assistant", &text,
                      put_content(&text, json_object_get(message, "content")) &&
                          put_calls(&text, json_object_get(message, "tool_calls")));
}

static json_t *with_result(const json_t *message) {
    mr_text_buf text = {0};
    return message_of("user", &text,
                      put(&text, "<tool_response>\n") && put_content(&text, json_object_get(message, "content")) &&
                          put(&text, "\n</tool_response>"));
}

static json_t *with_tools(const json_t *system, const json_t *tools) {
    mr_text_buf text = {0};
    const json_t *tool;
    size_t i;
    bool ok = put_content(&text, json_object_get(system, "content")) && put(&text, text.len ? "\n\n" : "") &&
              put(&text, BEFORE);
    json_array_foreach(tools, i, tool) ok = ok && put_json(&text, tool) && put(&text, "\n");
    return message_of("system", &text, ok && put(&text, BEHIND));
}

/* at: the index of the message, for the error. */
static mr_status check_tool_calls(const json_t *message, size_t at, mr_err *err) {
    const json_t *call;
    size_t i;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        if (!json_is_string(json_object_get(chat_tool_function(call), "name")))
            return mr_err_set(err, MR_E_INVALID, "messages[%zu].tool_calls[%zu].function.name: must be a string", at,
                              i);
    }
    return MR_OK;
}

mr_status mr_chat_tools_instruct(json_t *messages, const json_t *tools, mr_err *err) {
    const char *first = role_of(json_array_get(messages, 0));
    bool has_system = strcmp(first, "system") == 0 || strcmp(first, "developer") == 0;
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (check_tool_calls(json_array_get(messages, i), i, err) != MR_OK)
            return MR_E_INVALID;
    json_t *system = with_tools(has_system ? json_array_get(messages, 0) : NULL, tools);
    bool ok = (has_system ? json_array_set_new(messages, 0, system) : json_array_insert_new(messages, 0, system)) == 0;
    for (size_t i = 1; ok && i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        if (json_array_size(json_object_get(m, "tool_calls")) > 0)
            ok = json_array_set_new(messages, i, with_calls(m)) == 0;
        else if (strcmp(role_of(m), "tool") == 0)
            ok = json_array_set_new(messages, i, with_result(m)) == 0;
    }
    return ok ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the description of tools");
}
