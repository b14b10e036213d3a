/* Prompts of chat templates and the answers to them, for test_chat_answers.py: reads lines of JSON, and answers each
 * with one. With "messages": {"text"}, the prompt. With "answer": what the answer to "prompt" is taken apart into, in
 * pieces of "piece" bytes. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/serving/chat/chat_output.h"
#include "coordinator/serving/chat/chat_template.h"
#include "coordinator/serving/json/json.h"
#include "tests/unit/engine/text/test_text_vocabs.h"

static mr_str text_of(const json_t *request, const char *key) {
    const json_t *s = json_object_get(request, key);
    return (mr_str){json_is_string(s) ? json_string_value(s) : "", json_string_length(s)};
}

static json_t *render(const json_t *request, const mr_tokenizer *tok) {
    mr_chat_template *t = NULL;
    mr_text_buf text = {0};
    mr_err err = {0};
    mr_status status = mr_chat_template_load(NULL, tok, text_of(request, "source").data, &t, &err);
    if (status == MR_OK)
        status = mr_chat_template_render(t, json_object_get(request, "messages"), json_object_get(request, "tools"),
                                         json_object_get(request, "variables"),
                                         json_is_true(json_object_get(request, "add_generation_prompt")), &text, &err);
    json_t *result = status == MR_OK ? json_pack("{s:s%}", "text", text.data ? text.data : "", text.len)
                                     : json_pack("{s:s}", "error", err.text);
    mr_text_buf_deinit(&text);
    mr_chat_template_destroy(t);
    return result;
}

/* The sum of the deltas. */
typedef struct parts {
    mr_text_buf content, reasoning, arguments;
    json_t *calls;
} parts;

static mr_status take(void *ctx, const mr_chat_delta *d, mr_err *err) {
    parts *p = ctx;
    mr_text_buf *to = d->kind == CHAT_CONTENT ? &p->content : d->kind == CHAT_REASONING ? &p->reasoning : &p->arguments;
    bool ok = true;
    if (d->kind == CHAT_TOOL_BEGIN)
        ok = json_array_append_new(p->calls, json_pack("{s:s%}", "name", d->text.data, d->text.len)) == 0;
    else if (d->kind != CHAT_TOOL_END)
        ok = mr_text_buf_append(to, d->text.data, d->text.len);
    else {
        json_t *call = json_array_get(p->calls, json_array_size(p->calls) - 1);
        ok = json_object_set_new(call, "arguments", json_stringn(to->data, to->len)) == 0;
        mr_text_buf_clear(to);
    }
    return ok ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory");
}

static mr_status push(mr_chat_output *o, mr_str text, size_t piece, mr_err *err) {
    mr_status status = MR_OK;
    for (size_t i = 0; status == MR_OK && i < text.len; i += piece)
        status = mr_chat_output_push(o, (mr_str){text.data + i, text.len - i < piece ? text.len - i : piece}, err);
    return status == MR_OK ? mr_chat_output_end(o, err) : status;
}

static json_t *parse(const json_t *request) {
    parts p = {.calls = json_array()};
    mr_err err = {0};
    mr_chat_output *o = NULL;
    const mr_chat_output_desc d = {.format = mr_chat_format_of(text_of(request, "source")),
                                   .prompt = text_of(request, "prompt"),
                                   .tools = json_object_get(request, "tools"),
                                   .request_id = mr_str_from("id"),
                                   .on_delta = take,
                                   .ctx = &p};
    mr_status status = mr_chat_output_create(&d, &o, &err);
    if (status == MR_OK)
        status =
            push(o, text_of(request, "answer"), (size_t)json_integer_value(json_object_get(request, "piece")), &err);
    json_t *result =
        status != MR_OK
            ? json_pack("{s:s}", "error", err.text)
            : json_pack("{s:s, s:b, s:s%, s:s%, s:O}", "form", chat_format_name(d.format), "native",
                        d.format.native_tool_calls, "content", p.content.data ? p.content.data : "", p.content.len,
                        "reasoning", p.reasoning.data ? p.reasoning.data : "", p.reasoning.len, "calls", p.calls);
    mr_chat_output_destroy(o);
    mr_text_buf_deinit(&p.content);
    mr_text_buf_deinit(&p.reasoning);
    mr_text_buf_deinit(&p.arguments);
    json_decref(p.calls);
    return result;
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    small_vocab v;
    small_spm(&v);
    mr_tokenizer *tok = small_create(&v);
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        mr_err err = {0};
        json_t *request = mr_json_read((mr_str){line, (size_t)n}, 0, &err);
        json_t *result = json_object_get(request, "messages") ? render(request, tok) : parse(request);
        if (!result || json_dumpf(result, stdout, JSON_ENCODE_ANY) != 0)
            return 1;
        putchar('\n');
        fflush(stdout);
        json_decref(request);
        json_decref(result);
    }
    free(line);
    mr_tokenizer_destroy(tok);
    return 0;
}
