/* coordinator/serving/chat/chat_template_probe.c - finds out what a template can read: renders small conversations that
 * hold unique words, and looks for these words in the result. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_template_internal.h"
#include "coordinator/serving/chat/chat_tools.h"

static const char said[] = "qJ7vOne", asked[] = "qJ7vTwo", called[] = "qJ7vName", argument[] = "qJ7vKey";

/* Renders the messages and releases them. The text is empty where the template fails. */
static mr_status try_render(const mr_chat_template *t, const chat_source *s, json_t *messages, bool with_tools,
                            mr_text_buf *out, mr_err *err) {
    mr_err failure = {0};
    json_t *tools = with_tools ? json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s}}}}}]", "type", "function",
                                           "function", "name", called, "description", "d", "parameters", "type",
                                           "object", "properties", argument, "type", "string")
                               : NULL;
    mr_status status = MR_E_NO_MEMORY;
    mr_text_buf_clear(out);
    if (messages && (tools || !with_tools) && mr_text_buf_reserve(out, 0))
        status = chat_source_render(t, s, messages, tools, NULL, false, out, &failure);
    json_decref(messages);
    json_decref(tools);
    if (status == MR_E_NO_MEMORY)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to try a chat template");
    return MR_OK;
}

static bool has(const mr_text_buf *text, const char *what) {
    return strstr(text->data, what) != NULL;
}

/* Whether the text has the word in quotes, as Python prints a list or string. No template intends such output. */
static bool has_quoted(const mr_text_buf *text, const char *quote, const char *word, const char *end) {
    const char *at = text->data;
    for (size_t n = strlen(word), q = strlen(quote); (at = strstr(at, word)) != NULL; at += n)
        if ((size_t)(at - text->data) >= q && memcmp(at - q, quote, q) == 0 && strncmp(at + n, end, strlen(end)) == 0)
            return true;
    return false;
}

/* Finds out whether the template fails without tools as a text. */
static mr_status probe_functions(const mr_chat_template *t, chat_source *s, mr_text_buf *text, mr_err *err) {
    mr_status status = MR_OK;
    bool good = false;
    for (int given = 0; given < 2 && !good && status == MR_OK; given++) {
        s->can.functions = given;
        status = try_render(t, s, json_pack("[{s:s, s:s}]", "role", "user", "content", said), false, text, err);
        good = status == MR_OK && has(text, said);
    }
    s->can.functions = s->can.functions && good;
    return status;
}

static mr_status probe_contents(const mr_chat_template *t, chat_source *s, mr_text_buf *text, mr_err *err) {
    mr_status status = try_render(t, s, json_pack("[{s:s, s:s}]", "role", "user", "content", said), false, text, err);
    if (status != MR_OK)
        return status;
    s->can.strings = has(text, said);
    json_t *parts = json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "user", "content", "type", "text", "text", said);
    if ((status = try_render(t, s, parts, false, text, err)) != MR_OK)
        return status;
    s->can.parts = has(text, said) && !has_quoted(text, "'", said, "'") && !has_quoted(text, "\"", said, "\"");
    if (!s->can.parts)
        s->can.strings = true; /* no result: most templates read strings */
    return MR_OK;
}

/* A content in the form that this template reads. */
static json_t *content(const chat_source *s, const char *text) {
    return s->can.strings ? json_string(text) : json_pack("[{s:s, s:s}]", "type", "text", "text", text);
}

static mr_status probe_system(const mr_chat_template *t, chat_source *s, mr_text_buf *text, mr_err *err) {
    json_t *messages = json_pack("[{s:s, s:o}, {s:s, s:o}]", "role", "system", "content", content(s, said), "role",
                                 "user", "content", content(s, asked));
    mr_status status = try_render(t, s, messages, false, text, err);
    s->can.system = status == MR_OK && has(text, said) && has(text, asked);
    s->can.developer = strstr(s->text, "developer") != NULL;
    return status;
}

typedef struct call_probe {
    bool object; /* arguments as an object, not as JSON text */
    bool null;   /* content null, not empty */
    bool good;   /* out: the tool call is complete in the text */
    int n_none;  /* out: how often the text has None; -1: the template failed */
} call_probe;

static int count_none(const mr_text_buf *text) {
    int n = 0;
    for (const char *at = text->data; (at = strstr(at, "None")) != NULL; at += 4)
        n++;
    return text->len ? n : -1;
}

/* Renders a conversation with an earlier tool call and its result. */
static mr_status probe_call(const mr_chat_template *t, const chat_source *s, call_probe *p, mr_text_buf *text,
                            mr_err *err) {
    json_t *arguments =
        p->object ? json_pack("{s:s}", argument, said) : json_sprintf("{\"%s\": \"%s\"}", argument, said);
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", "call00001", "type", "function", "function", "name",
                             called, "arguments", arguments);
    json_t *messages =
        json_pack("[{s:s, s:o}, {s:s, s:o, s:[o]}, {s:s, s:s, s:s, s:o}]", "role", "user", "content", content(s, asked),
                  "role", "assistant", "content", p->null ? json_null() : content(s, ""), "tool_calls", call, "role",
                  "tool", "tool_call_id", "call00001", "name", called, "content", content(s, asked));
    mr_status status = try_render(t, s, messages, true, text, err);
    if (status != MR_OK)
        return status;
    p->n_none = count_none(text);
    p->good = has(text, said) && has(text, argument) && !has_quoted(text, "'", argument, "'") &&
              !has_quoted(text, "\\\"", argument, "\\\"");
    return MR_OK;
}

static mr_status probe_calls(const mr_chat_template *t, chat_source *s, mr_text_buf *text, mr_err *err) {
    mr_status status;
    s->can.object_tool_calls = s->can.empty_content = true; /* for templates that render no tool calls */
    for (int object = 1; object >= 0; object--) {
        call_probe empty = {.object = object}, null = {.object = object, .null = true};
        if ((status = probe_call(t, s, &empty, text, err)) != MR_OK ||
            (status = probe_call(t, s, &null, text, err)) != MR_OK)
            return status;
        if (!empty.good && !null.good)
            continue;
        s->can.object_tool_calls = object;
        s->can.empty_content = empty.good;
        s->can.null_content = null.good && (empty.n_none < 0 || null.n_none <= empty.n_none);
        break;
    }
    return MR_OK;
}

mr_status chat_source_probe(const mr_chat_template *t, chat_source *s, mr_err *err) {
    mr_text_buf text = {0};
    s->can.think = chat_source_leaves_thinking_open(s->text);
    s->can.format = mr_chat_format_of(mr_str_from(s->text));
    s->can.leaves_out_calls = !strstr(s->text, "tool_calls") && chat_tools_can_write(s->can.format);
    mr_status status = probe_functions(t, s, &text, err);
    if (status == MR_OK)
        status = probe_contents(t, s, &text, err);
    if (status == MR_OK)
        status = probe_system(t, s, &text, err);
    if (status == MR_OK)
        status = probe_calls(t, s, &text, err);
    mr_text_buf_deinit(&text);
    return status;
}
