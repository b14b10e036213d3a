/* coordinator/serving/chat/chat_template_probe.c - finds out what a template can read: renders small conversations that
 * hold unique words, and looks for these words in the result. */
// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>
#include <stdio.h>

#include "coordinator/serving/chat/chat_formats.h"
#include "coordinator/serving/chat/chat_messages.h"
#include "coordinator/serving/chat/chat_template_internal.h"
#include "coordinator/serving/chat/chat_tools.h"
#include "coordinator/serving/json/json.h"

static const char said[] = "qJ7vOne", asked[] = "qJ7vTwo", called[] = "qJ7vName", argument[] = "qJ7vKey";

static json_t *probe_tools(void) {
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s}}}}}]", "type", "function", "function", "name", called,
                     "description", "d", "parameters", "type", "object", "properties", argument, "type", "string");
}

/* Renders the messages and releases them. The text is empty where the template fails. */
static mr_status try_render(const mr_chat_template *t, const chat_source *s, json_t *messages, bool with_tools,
                            mr_text_buf *out, mr_err *err) {
    mr_err failure = {0};
    json_t *tools = with_tools ? probe_tools() : NULL;
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

/* ---- trials: what has to be adapted ---- */

#define SAY(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define CALL(id, value)                                                                                                \
    "{\"id\": \"" id "\", \"type\": \"function\", \"function\": {\"name\": \"qJ7vName\", \"arguments\": "              \
    "\"{\\\"qJ7vKey\\\": \\\"" value "\\\"}\"}}"
#define CALLS(more, calls) "{\"role\": \"assistant\", " more "\"tool_calls\": [" calls "]}"
#define RESULT(id, text) "{\"role\": \"tool\", \"tool_call_id\": \"" id "\", \"content\": \"" text "\"}"
#define LONG_ID "call_aB3dE6gH9jK2mN5pQ8sT"

/* A conversation, whose words qJ7vW1, qJ7vW2 and so on have to be in the text. */
typedef struct trial {
    const char *messages;
    int n_words;
    bool with_tools;
} trial;

enum { MAX_TRIALS = 2 };

/* An ability, and the trials that succeed where the template has it. */
typedef struct question {
    size_t ability;   /* offset of a bool in chat_abilities */
    const char *word; /* without this word in its source the template does not have the ability; or NULL */
    trial trials[MAX_TRIALS];
} question;

#define ABILITY(name) offsetof(chat_abilities, name)
static const question QUESTIONS[] = {
    {ABILITY(tools), NULL, {{"[" SAY("user", "qJ7vW1") "]", 1, true}}},
    {ABILITY(system), NULL, {{"[" SAY("system", "qJ7vW1") "," SAY("user", "qJ7vW2") "]", 2, false}}},
    {ABILITY(developer),
     "developer",
     {{"[" SAY("developer", "qJ7vW1") "," SAY("user", "qJ7vW2") "]", 2, false},
      {"[" SAY("developer", "qJ7vW1") "," SAY("user", "qJ7vW2") "]", 2, true}}},
    {ABILITY(two_systems),
     NULL,
     {{"[" SAY("system", "qJ7vW1") "," SAY("system", "qJ7vW2") "," SAY("user", "qJ7vW3") "]", 3, false},
      {"[" SAY("system", "qJ7vW1") "," SAY("system", "qJ7vW2") "," SAY("user", "qJ7vW3") "]", 3, true}}},
    {ABILITY(later_systems),
     NULL,
     {{"[" SAY("system", "qJ7vW1") "," SAY("user", "qJ7vW2") "," SAY("assistant", "qJ7vW3") "," SAY(
           "system", "qJ7vW4") "," SAY("user", "qJ7vW5") "]",
       5, false},
      {"[" SAY("user", "qJ7vW1") "," SAY("assistant", "qJ7vW2") "," SAY("user", "qJ7vW3") "," SAY("system",
                                                                                                  "qJ7vW4") "]",
       4, false}}},
    {ABILITY(two_users),
     NULL,
     {{"[" SAY("user", "qJ7vW1") "," SAY("user", "qJ7vW2") "]", 2, false},
      {"[" SAY("user", "qJ7vW1") "," SAY("assistant", "qJ7vW2") "," SAY("user", "qJ7vW3") "," SAY("user", "qJ7vW4") "]",
       4, false}}},
    {ABILITY(calls),
     NULL,
     {{"[" SAY("user", "qJ7vW1") "," CALLS("", CALL("call00001", "qJ7vW2")) "," RESULT("call00001", "qJ7vW3") "]", 3,
       true}}},
    {ABILITY(long_ids),
     NULL,
     {{"[" SAY("user", "qJ7vW1") "," CALLS("", CALL(LONG_ID, "qJ7vW2")) "," RESULT(LONG_ID, "qJ7vW3") "]", 3, true}}},
    {ABILITY(several_calls),
     NULL,
     {{"[" SAY("user", "qJ7vW1") "," CALLS("", CALL("call00001", "qJ7vW2") "," CALL("call00002", "qJ7vW3")) "," RESULT(
           "call00001", "qJ7vW4") "," RESULT("call00002", "qJ7vW5") "]",
       5, true}}},
    {ABILITY(two_answers),
     NULL,
     {{"[" SAY("user", "qJ7vW1") "," SAY("assistant", "qJ7vW2") "," CALLS("", CALL("call00001", "qJ7vW3")) "," RESULT(
           "call00001", "qJ7vW4") "," SAY("assistant", "qJ7vW5") "," SAY("user", "qJ7vW6") "]",
       6, true}}},
    {ABILITY(user_behind_results),
     NULL,
     {{"[" SAY("user", "qJ7vW1") "," CALLS("", CALL("call00001", "qJ7vW2")) "," RESULT("call00001", "qJ7vW3") "," SAY(
           "user", "qJ7vW4") "]",
       4, true}}},
    {ABILITY(content_with_calls),
     NULL,
     {{"[" SAY("user", "qJ7vW1") "," CALLS("\"content\": \"qJ7vW2\", ",
                                           CALL("call00001", "qJ7vW3")) "," RESULT("call00001", "qJ7vW4") "]",
       4, true},
      {"[" SAY("user", "qJ7vW1") "," CALLS("\"content\": \"qJ7vW2\", ", CALL("call00001", "qJ7vW3")) "," RESULT(
           "call00001", "qJ7vW4") "," SAY("assistant", "qJ7vW5") "," SAY("user", "qJ7vW6") "]",
       6, true}}},
    {ABILITY(calls_without_tools),
     NULL,
     {{"[" SAY("user", "qJ7vW1") "," CALLS("", CALL("call00001", "qJ7vW2")) "," RESULT("call00001", "qJ7vW3") "," SAY(
           "assistant", "qJ7vW4") "," SAY("user", "qJ7vW5") "]",
       5, false}}},
};

static mr_status try_trial(const mr_chat_template *t, const chat_source *s, const trial *tried, mr_text_buf *text,
                           bool *out_good, mr_err *err) {
    json_t *messages = mr_json_read(mr_str_from(tried->messages), 0, err), *read = NULL;
    mr_status status = messages ? chat_messages_read(messages, &read, err) : MR_E_NO_MEMORY;
    json_decref(messages);
    if (status != MR_OK)
        return status;
    json_t *tools = tried->with_tools ? probe_tools() : NULL;
    messages = !tried->with_tools || tools ? chat_messages_adapt(&s->can, read, tools) : NULL;
    json_decref(tools);
    json_decref(read);
    status = try_render(t, s, messages, tried->with_tools, text, err);
    *out_good = status == MR_OK;
    for (int i = 1; *out_good && i <= tried->n_words; i++) {
        char word[16];
        snprintf(word, sizeof word, "qJ7vW%d", i);
        *out_good = has(text, word);
    }
    return status;
}

/* Tries the ability, and the adapted messages where the template does not have it. Where neither succeeds, the messages
 * go to the template as they are, and the template says what it refuses. */
static mr_status ask(const mr_chat_template *t, chat_source *s, const question *q, mr_text_buf *text, mr_err *err) {
    bool *can = (bool *)((char *)&s->can + q->ability), good = false;
    mr_status status = MR_OK;
    if (q->word && !strstr(s->text, q->word)) {
        *can = false;
        return MR_OK;
    }
    for (int native = 1; native >= 0 && !good && status == MR_OK; native--) {
        *can = native;
        good = true;
        for (int i = 0; i < MAX_TRIALS && q->trials[i].messages && good && status == MR_OK; i++)
            status = try_trial(t, s, &q->trials[i], text, &good, err);
    }
    *can = *can || !good;
    return status;
}

/* Finds where the template reads reasoning: beside a call, or else in the last answer. */
static mr_status probe_reasoning(const mr_chat_template *t, chat_source *s, mr_text_buf *text, mr_err *err) {
    static const trial TRIALS[] = {
        {"[" SAY("user", "qJ7vW2") "," CALLS("\"reasoning\": \"qJ7vW1\", ",
                                             CALL("call00001", "qJ7vW3")) "," RESULT("call00001", "qJ7vW4") "]",
         4, true},
        {"[" SAY("user", "qJ7vW2") ", {\"role\": \"assistant\", \"reasoning\": \"qJ7vW1\", \"content\": \"qJ7vW3\"}]",
         3, false},
    };
    const chat_marks *marks = s->can.format.reasoning;
    bool has_marks = strstr(s->text, marks->open) || strstr(s->text, marks->close), good = false;
    mr_status status = MR_OK;
    for (int i = 0; i < 2; i++)
        for (int where = 0; where < CHAT_REASONING_ANY && status == MR_OK; where++) {
            s->can.reasoning = where;
            if (where == CHAT_REASONING_MARKS && !has_marks)
                continue;
            status = try_trial(t, s, &TRIALS[i], text, &good, err);
            good = good && !has_quoted(text, "'", "qJ7vW1", "'") && !has_quoted(text, "\"", "qJ7vW1", "\"");
            s->can.keeps_reasoning = good && i == 0;
            if (good)
                return status;
        }
    s->can.reasoning = CHAT_REASONING_ANY;
    return status;
}

mr_status chat_source_probe(const mr_chat_template *t, chat_source *s, mr_err *err) {
    mr_text_buf text = {0};
    s->can.think = chat_source_leaves_thinking_open(s->text);
    s->can.format = mr_chat_format_of(mr_str_from(s->text));
    s->can.leaves_out_calls = !strstr(s->text, "tool_calls") && chat_tools_can_write(s->can.format);
    for (size_t i = 0; i < sizeof QUESTIONS / sizeof QUESTIONS[0]; i++) /* until it is asked: nothing is adapted */
        *(bool *)((char *)&s->can + QUESTIONS[i].ability) = true;
    mr_status status = probe_functions(t, s, &text, err);
    if (status == MR_OK)
        status = probe_contents(t, s, &text, err);
    if (status == MR_OK)
        status = probe_calls(t, s, &text, err);
    for (size_t i = 0; i < sizeof QUESTIONS / sizeof QUESTIONS[0] && status == MR_OK; i++)
        status = ask(t, s, &QUESTIONS[i], &text, err);
    if (!s->can.tools)
        s->can.format = (mr_chat_format){mr_chat_format_of((mr_str){0}).calls, s->can.format.reasoning, false};
    if (status == MR_OK)
        status = probe_reasoning(t, s, &text, err);
    mr_text_buf_deinit(&text);
    return status;
}
