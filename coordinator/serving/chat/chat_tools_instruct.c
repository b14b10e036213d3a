/* coordinator/serving/chat/chat_tools_instruct.c - rewrites a conversation with tools for a template that knows no
 * tools: their descriptions become part of the system message, and calls and results become plain text. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/chat/chat_messages.h"
#include "coordinator/serving/chat/chat_schema.h"
#include "coordinator/serving/chat/chat_tools.h"
#include "coordinator/serving/json/json.h"

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
    char *text = mr_json_dump(value, 0);
    bool ok = text && put(b, text);
    free(text);
    return ok;
}

/* Sets the content of a message to the text, and frees the text. */
static bool set_content(json_t *message, mr_text_buf *text, bool ok) {
    ok = ok && json_object_set_new(message, "content", json_stringn(text->data, text->len)) == 0;
    mr_text_buf_deinit(text);
    return ok;
}

/* Moves the calls of a message into its content. */
static bool write_calls(json_t *message) {
    const json_t *calls = json_object_get(message, "tool_calls"), *call;
    mr_text_buf b = {0};
    size_t i;
    bool ok = chat_content_append(json_object_get(message, "content"), &b);
    json_array_foreach(calls, i, call) {
        const json_t *f = chat_tool_function(call), *text = json_object_get(f, "text");
        ok = ok && put(&b, b.len ? "\n<tool_call>\n{\"name\": " : "<tool_call>\n{\"name\": ") &&
             put_json(&b, json_object_get(f, "name")) && put(&b, ", \"arguments\": ") &&
             (text ? chat_content_append(text, &b) : put_json(&b, json_object_get(f, "arguments"))) &&
             put(&b, "}\n</tool_call>");
    }
    ok = set_content(message, &b, ok);
    json_object_del(message, "tool_calls");
    return ok;
}

/* Makes one message of the user of the results in a row that begin here. */
static bool write_results(json_t *messages, size_t i) {
    json_t *message = json_pack("{s:s}", "role", "user");
    mr_text_buf b = {0};
    bool ok = message != NULL;
    while (ok && chat_is_role(json_array_get(messages, i), "tool"))
        ok = put(&b, b.len ? "\n<tool_response>\n" : "<tool_response>\n") &&
             chat_content_append(json_object_get(json_array_get(messages, i), "content"), &b) &&
             put(&b, "\n</tool_response>") && json_array_remove(messages, i) == 0;
    ok = set_content(message, &b, ok) && json_array_insert(messages, i, message) == 0;
    json_decref(message);
    return ok;
}

/* Puts the description behind the system message, which the list gets where it has none. */
static bool describe(json_t *messages, const json_t *tools) {
    json_t *first = json_array_get(messages, 0);
    bool has_system = chat_is_role(first, "system") || chat_is_role(first, "developer");
    mr_text_buf text = {0};
    const json_t *tool;
    size_t i;
    bool ok = has_system || json_array_insert_new(messages, 0, json_pack("{s:s}", "role", "system")) == 0;
    json_t *system = json_array_get(messages, 0);
    ok = ok && chat_content_append(json_object_get(system, "content"), &text) && put(&text, text.len ? "\n\n" : "") &&
         put(&text, BEFORE);
    json_array_foreach(tools, i, tool) ok = ok && put_json(&text, tool) && put(&text, "\n");
    return set_content(system, &text, ok && put(&text, BEHIND));
}

bool chat_tools_instruct(json_t *messages, const json_t *tools) {
    bool ok = !tools || describe(messages, tools);
    for (size_t i = 0; ok && i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i);
        if (json_object_get(m, "tool_calls"))
            ok = write_calls(m);
        else if (chat_is_role(m, "tool"))
            ok = write_results(messages, i);
    }
    return ok;
}
