/* coordinator/serving/chat/chat_template_messages.c - changes messages into the form that a template can read: roles,
 * the order of messages, contents, calls and reasoning. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/serving/chat/chat_formats.h"
#include "coordinator/serving/chat/chat_messages.h"
#include "coordinator/serving/chat/chat_template_internal.h"
#include "coordinator/serving/chat/chat_tools.h"
#include "coordinator/serving/json/json.h"

typedef const chat_abilities *abilities;

/* Copies a message, and copies its calls so that they can be changed. */
static json_t *copy_message(const json_t *message) {
    json_t *copy = json_copy((json_t *)(uintptr_t)message), *calls = json_object_get(copy, "tool_calls");
    json_t *copies = calls ? json_array() : NULL, *call;
    size_t i;
    bool ok = copy && (!calls || copies);
    json_array_foreach(calls, i, call) {
        json_t *c = json_copy(call), *function = json_copy(json_object_get(call, "function"));
        ok = json_object_set_new(c, "function", function) == 0 && ok;
        ok = json_array_append_new(copies, c) == 0 && ok;
    }
    if (ok && copies && json_object_set(copy, "tool_calls", copies) != 0)
        ok = false;
    json_decref(copies);
    if (ok)
        return copy;
    json_decref(copy);
    return NULL;
}

/* ---- the list: roles, and the order of messages ---- */

static bool is_instruction(const json_t *message) {
    return chat_is_role(message, "system") || chat_is_role(message, "developer");
}

static bool set_role(json_t *message, const char *role) {
    return json_object_set_new(message, "role", json_string(role)) == 0;
}

/* Puts the content of message `from` in front of that of message `to`, or behind it, and removes `from`. */
static bool merge(json_t *list, size_t from, size_t to, const char *between) {
    const json_t *a = json_object_get(json_array_get(list, from < to ? from : to), "content");
    const json_t *b = json_object_get(json_array_get(list, from < to ? to : from), "content");
    mr_text_buf text = {0};
    bool ok = chat_content_append(a, &text) && mr_text_buf_append(&text, between, strlen(between)) &&
              chat_content_append(b, &text);
    ok = ok && json_object_set_new(json_array_get(list, to), "content", json_stringn(text.data, text.len)) == 0 &&
         json_array_remove(list, from) == 0;
    mr_text_buf_deinit(&text);
    return ok;
}

/* Puts an instruction in front of the next message of the user, or behind the user's words in front of it, or makes it
 * words of the user. */
static bool displace(json_t *list, size_t i) {
    for (size_t next = i + 1; next < json_array_size(list); next++)
        if (chat_is_role(json_array_get(list, next), "user"))
            return merge(list, i, next, "\n\n");
    if (i && chat_is_role(json_array_get(list, i - 1), "user"))
        return merge(list, i, i - 1, "\n\n");
    return set_role(json_array_get(list, i), "user");
}

static size_t count_first_instructions(const json_t *list) {
    size_t n = 0;
    while (is_instruction(json_array_get(list, n)))
        n++;
    return n;
}

/* Displaces the instructions from message `first` on. */
static bool displace_from(json_t *list, size_t first) {
    bool ok = true;
    for (size_t i = json_array_size(list); ok && i > first; i--)
        if (is_instruction(json_array_get(list, i - 1)))
            ok = displace(list, i - 1);
    return ok;
}

static bool place_instructions(abilities can, json_t *list) {
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(list); i++)
        if (chat_is_role(json_array_get(list, i), "developer") && (i > 0 || !can->developer))
            ok = set_role(json_array_get(list, i), "system");
    while (ok && !can->two_systems && count_first_instructions(list) > 1)
        ok = merge(list, 1, 0, "\n\n");
    return ok && (can->later_systems || displace_from(list, count_first_instructions(list)));
}

static bool merge_users(json_t *list) {
    bool ok = true;
    for (size_t i = json_array_size(list); ok && i > 1; i--)
        if (chat_is_role(json_array_get(list, i - 1), "user") && chat_is_role(json_array_get(list, i - 2), "user"))
            ok = merge(list, i - 1, i - 2, "\n\n");
    return ok;
}

/* Moves the calls of message i behind it, into a message of their own. */
static bool part_content(json_t *list, size_t i) {
    json_t *message = json_array_get(list, i), *calls = json_copy(message);
    json_object_del(calls, "content");
    json_object_del(message, "tool_calls");
    json_object_del(message, "reasoning"); /* it stays with the calls: templates keep that */
    return json_array_insert_new(list, i + 1, calls) == 0;
}

/* Joins the answers without calls of each turn, which a message of the user ends: they go in front of the last one. */
static bool merge_answers(json_t *list) {
    size_t last = 0; /* of the present turn; 0: none yet */
    bool ok = true;
    for (size_t i = json_array_size(list); ok && i > 0; i--) {
        const json_t *message = json_array_get(list, i - 1);
        if (chat_is_role(message, "user"))
            last = 0;
        if (!chat_is_role(message, "assistant") || json_object_get(message, "tool_calls"))
            continue;
        if (last)
            ok = merge(list, i - 1, --last, "\n\n");
        last = last ? last : i - 1;
    }
    return ok;
}

/* Puts an empty answer between results and words of the user. */
static bool answer_results(json_t *list) {
    bool ok = true;
    for (size_t i = 1; ok && i < json_array_size(list); i++)
        if (chat_is_role(json_array_get(list, i), "user") && chat_is_role(json_array_get(list, i - 1), "tool"))
            ok = json_array_insert_new(list, i, json_pack("{s:s, s:s}", "role", "assistant", "content", "")) == 0;
    return ok;
}

/* The index of the result of a call: the one with its id; without an id the first one. 0: there is none. */
static size_t find_result(const json_t *list, size_t first, const json_t *call) {
    const json_t *id = json_object_get(call, "id");
    for (size_t i = first; chat_is_role(json_array_get(list, i), "tool"); i++) {
        const json_t *of = json_object_get(json_array_get(list, i), "tool_call_id");
        if (!id || !of || json_equal(id, of))
            return i;
    }
    return 0;
}

/* Divides message i, which has several calls, into messages of one call, each with its result behind it. */
static bool part_calls(json_t *list, size_t i) {
    json_t *message = json_array_get(list, i), *calls = json_incref(json_object_get(message, "tool_calls")), *call;
    size_t k, at = i + 1; /* behind the last message that is done */
    bool ok = true;
    json_array_foreach(calls, k, call) {
        json_t *one = json_pack("[O]", call);
        if (k == 0)
            ok = json_object_set_new(message, "tool_calls", one) == 0 && ok;
        else
            ok = ok && json_array_insert_new(list, at++,
                                             json_pack("{s:s, s:o}", "role", "assistant", "tool_calls", one)) == 0;
        size_t from = find_result(list, at, call);
        json_t *result = from ? json_incref(json_array_get(list, from)) : NULL;
        if (result)
            ok = ok && json_array_remove(list, from) == 0 && json_array_insert(list, at++, result) == 0;
        json_decref(result);
    }
    json_decref(calls);
    return ok;
}

static bool part_answers(abilities can, json_t *list) {
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const json_t *message = json_array_get(list, i), *calls = json_object_get(message, "tool_calls");
        const json_t *content = json_object_get(message, "content");
        if (calls && !can->content_with_calls && json_string_length(content) + json_array_size(content))
            ok = part_content(list, i++);
        if (ok && !can->several_calls && json_array_size(calls) > 1)
            ok = part_calls(list, i);
    }
    return ok;
}

/* ---- ids ---- */

/* Sets the id of a call or result to "call" and five digits, which all templates take. */
static bool set_id(json_t *object, const char *key, json_t *numbers) {
    char text[32];
    const char *old = json_string_value(json_object_get(object, key));
    const json_t *known = old ? json_object_get(numbers, old) : NULL;
    json_int_t n = known ? json_integer_value(known) : (json_int_t)json_object_size(numbers);
    snprintf(text, sizeof text, "call%05d", (int)(n % 100000));
    return (!old || known || json_object_set_new(numbers, old, json_integer(n)) == 0) &&
           json_object_set_new(object, key, json_string(text)) == 0;
}

static bool shorten_ids(json_t *list) {
    json_t *numbers = json_object(), *message, *call;
    size_t i, k;
    bool ok = numbers != NULL;
    json_array_foreach(list, i, message) {
        json_array_foreach(json_object_get(message, "tool_calls"), k, call) ok = ok && set_id(call, "id", numbers);
        ok = ok && (!chat_is_role(message, "tool") || set_id(message, "tool_call_id", numbers));
    }
    json_decref(numbers);
    return ok;
}

/* ---- one message ---- */

/* Sets the content to a text, or to a list of one part where the template reads lists alone. */
static bool set_text(abilities can, json_t *message, const mr_text_buf *text, bool ok) {
    json_t *string = ok ? json_stringn(text->data ? text->data : "", text->len) : NULL;
    if (string && !can->strings)
        string = json_pack("[{s:s, s:o}]", "type", "text", "text", string);
    return json_object_set_new(message, "content", string) == 0;
}

static bool form_content(abilities can, json_t *message) {
    const json_t *content = json_object_get(message, "content");
    bool has_calls = json_object_get(message, "tool_calls") != NULL;
    bool empty = !content || (has_calls && json_is_string(content) && !json_string_length(content));
    if (empty && has_calls && can->null_content && (!can->empty_content || !content))
        return json_object_set_new(message, "content", json_null()) == 0;
    if (!empty && (json_is_string(content) ? can->strings : can->parts))
        return true;
    mr_text_buf text = {0};
    bool ok = set_text(can, message, &text, chat_content_append(content, &text));
    mr_text_buf_deinit(&text);
    return ok;
}

/* Puts reasoning where the template reads it. */
static bool form_reasoning(abilities can, json_t *message) {
    static const char *const NAMES[] = {CHAT_REASONING_NAMES};
    json_t *reasoning = json_incref(json_object_get(message, "reasoning")),
           *content = json_object_get(message, "content");
    bool ok = true;
    json_object_del(message, "reasoning");
    if (!reasoning)
        return true;
    if (can->reasoning == CHAT_REASONING_PART) {
        json_t *list = json_pack("[{s:s, s:O}]", "type", "thinking", "thinking", reasoning);
        if (json_is_array(content))
            ok = json_array_extend(list, content) == 0;
        else if (json_string_length(content))
            ok = json_array_append_new(list, json_pack("{s:s, s:O}", "type", "text", "text", content)) == 0;
        ok = json_object_set_new(message, "content", list) == 0 && ok;
    } else if (can->reasoning == CHAT_REASONING_MARKS) {
        const chat_marks *marks = can->format.reasoning;
        mr_text_buf text = {0};
        ok = mr_text_buf_append(&text, marks->open, strlen(marks->open)) && mr_text_buf_append(&text, "\n", 1) &&
             chat_content_append(reasoning, &text) && mr_text_buf_append(&text, "\n", 1) &&
             mr_text_buf_append(&text, marks->close, strlen(marks->close)) && mr_text_buf_append(&text, "\n\n", 2) &&
             chat_content_append(content, &text);
        ok = set_text(can, message, &text, ok);
        mr_text_buf_deinit(&text);
    }
    for (int i = 0; ok && i < CHAT_REASONING_PART; i++)
        if (can->reasoning == i || can->reasoning == CHAT_REASONING_ANY)
            ok = json_object_set(message, NAMES[i], reasoning) == 0;
    json_decref(reasoning);
    return ok;
}

static bool form_arguments(abilities can, json_t *message) {
    json_t *call;
    size_t i;
    bool ok = true;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        json_t *function = json_object_get(call, "function"), *given = json_object_get(function, "text");
        char *text = can->object_tool_calls || given ? NULL : mr_json_dump(json_object_get(function, "arguments"), 0);
        if (!can->object_tool_calls)
            ok = ok && (given ? json_object_set(function, "arguments", given)
                              : json_object_set_new(function, "arguments", text ? json_string(text) : NULL)) == 0;
        json_object_del(function, "text");
        free(text);
    }
    return ok;
}

/* Writes tool calls behind the content, for a template that leaves them out. */
static bool write_calls(abilities can, json_t *message) {
    const json_t *calls = json_object_get(message, "tool_calls");
    mr_text_buf text = {0};
    if (!can->leaves_out_calls || !calls)
        return true;
    bool ok = chat_content_append(json_object_get(message, "content"), &text) &&
              chat_tools_write(can->format, calls, &text, NULL) == MR_OK;
    ok = set_text(can, message, &text, ok);
    mr_text_buf_deinit(&text);
    return ok;
}

static bool form_message(abilities can, json_t *message) {
    return write_calls(can, message) && form_arguments(can, message) && form_content(can, message) &&
           form_reasoning(can, message);
}

static bool adapt(abilities can, json_t *list, const json_t *tools) {
    bool ok = place_instructions(can, list), describes = can->tools && can->format.native_tool_calls;
    if (ok && (tools ? !describes || !can->calls : !can->calls_without_tools))
        ok = chat_tools_instruct(list, describes ? NULL : tools);
    ok = ok && (can->system || displace_from(list, 0)) && part_answers(can, list) &&
         (can->two_answers || merge_answers(list)) && (can->user_behind_results || answer_results(list)) &&
         (can->two_users || merge_users(list)) && (can->long_ids || shorten_ids(list));
    for (size_t i = 0; ok && i < json_array_size(list); i++)
        ok = form_message(can, json_array_get(list, i));
    return ok;
}

json_t *chat_messages_adapt(const chat_abilities *can, const json_t *said, const json_t *tools) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < json_array_size(said); i++)
        ok = json_array_append_new(list, copy_message(json_array_get(said, i))) == 0;
    if (ok && adapt(can, list, tools))
        return list;
    json_decref(list);
    return NULL;
}
