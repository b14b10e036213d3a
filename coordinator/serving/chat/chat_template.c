/* coordinator/serving/chat/chat_template.c - loads the template of a model, parses and probes it, and renders
 * conversations. */
// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include "coordinator/serving/chat/chat_messages.h"
#include "coordinator/serving/chat/chat_template_internal.h"
#include "engine/base/mem.h"

static const char chatml[] = "{%- for message in messages -%}\n"
                             "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
                             "{%- endfor -%}\n"
                             "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}\n";

/* For models that were not trained to chat: the contents of the messages alone, which the model continues. */
static const char plain[] = "{%- for message in messages -%}\n"
                            "{{ message.content }}{% if not loop.last %}{{ '\\n\\n' }}{% endif %}\n"
                            "{%- endfor -%}\n";

static mr_status no_memory(mr_err *err) {
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a conversation");
}

/* ---- load ---- */

static mr_status load_source(chat_source *s, mr_str text, mr_err *err) {
    s->text = mr_strndup(text.data, text.len);
    if (!s->text)
        return no_memory(err);
    mr_status status = mr_jinja_parse(text, &s->jinja, err);
    if (status != MR_OK)
        mr_err_prefix(err, "chat template");
    return status;
}

/* Loads the template that the model file has under the key, where there is one. */
static mr_status load_from_file(const mr_gguf *gguf, const char *key, chat_source *s, mr_err *err) {
    mr_str text;
    mr_err ignored;
    if (!gguf || mr_gguf_get_str(gguf, key, &text, &ignored) != MR_OK || !text.len)
        return MR_OK;
    return load_source(s, text, err);
}

static mr_status load_sources(mr_chat_template *t, const mr_gguf *gguf, const mr_tokenizer *tok, const char *given,
                              mr_err *err) {
    mr_status status;
    t->origin = CHAT_TEMPLATE_GIVEN;
    if (given)
        return load_source(&t->plain, mr_str_from(given), err);
    t->origin = CHAT_TEMPLATE_FILE;
    if ((status = load_from_file(gguf, "tokenizer.chat_template", &t->plain, err)) != MR_OK ||
        (status = load_from_file(gguf, "tokenizer.chat_template.tool_use", &t->with_tools, err)) != MR_OK)
        return status;
    if (t->plain.jinja)
        return MR_OK;
    bool has_marks = mr_tokenizer_find(tok, mr_str_from("<|im_start|>")) >= 0;
    t->origin = has_marks ? CHAT_TEMPLATE_CHATML : CHAT_TEMPLATE_PLAIN;
    return load_source(&t->plain, mr_str_from(has_marks ? chatml : plain), err);
}

static char *token_text(const mr_tokenizer *tok, int32_t id) {
    mr_str text = id < 0 ? (mr_str){"", 0} : mr_tokenizer_text(tok, id);
    return mr_strndup(text.data, text.len);
}

mr_status mr_chat_template_load(const mr_gguf *gguf, const mr_tokenizer *tok, const char *override_source,
                                mr_chat_template **out, mr_err *err) {
    mr_chat_template *t = mr_alloc(sizeof *t);
    if (!t)
        return no_memory(err);
    mr_status status = load_sources(t, gguf, tok, override_source, err);
    t->bos_text = token_text(tok, mr_tokenizer_bos_id(tok));
    t->eos_text = token_text(tok, mr_tokenizer_eos_id(tok));
    if (status == MR_OK && (!t->bos_text || !t->eos_text))
        status = no_memory(err);
    if (status == MR_OK)
        status = chat_source_probe(t, &t->plain, err);
    if (status == MR_OK && t->with_tools.jinja)
        status = chat_source_probe(t, &t->with_tools, err);
    if (status == MR_OK)
        *out = t;
    else
        mr_chat_template_destroy(t);
    return status;
}

static void source_deinit(chat_source *s) {
    mr_jinja_destroy(s->jinja);
    mr_free(s->text);
}

void mr_chat_template_destroy(mr_chat_template *t) {
    if (!t)
        return;
    source_deinit(&t->plain);
    source_deinit(&t->with_tools);
    mr_free(t->bos_text);
    mr_free(t->eos_text);
    mr_free(t);
}

const char *mr_chat_template_source(const mr_chat_template *t) {
    return t->plain.text;
}

const char *mr_chat_template_source_with_tools(const mr_chat_template *t) {
    return t->with_tools.jinja ? t->with_tools.text : t->plain.text;
}

mr_chat_format mr_chat_template_format(const mr_chat_template *t, bool with_tools) {
    return (with_tools && t->with_tools.jinja ? &t->with_tools : &t->plain)->can.format;
}

mr_chat_template_origin mr_chat_template_get_origin(const mr_chat_template *t) {
    return t->origin;
}

const char *mr_chat_template_origin_text(mr_chat_template_origin origin) {
    static const char *const texts[] = {
        [CHAT_TEMPLATE_GIVEN] = "the template that was given",
        [CHAT_TEMPLATE_FILE] = "the template of the model file",
        [CHAT_TEMPLATE_CHATML] = "ChatML, as the model file has no template",
        [CHAT_TEMPLATE_PLAIN] =
            "no template, as the model file has none: the model goes on with the text of the messages"};
    return texts[origin];
}

/* ---- render ---- */

typedef struct chat_request {
    const mr_chat_template *t;
    const chat_source *source;
    json_t *tools; /* without nulls; NULL: none */
    const json_t *variables;
    bool add_generation_prompt;
} chat_request;

/* The caller's variables replace defaults, but not messages and tools. Without tools the variable `tools` is undefined,
 * because some templates loop over it: a loop over an undefined variable is empty, a loop over None fails. */
static json_t *make_variables(const mr_chat_template *t, const chat_source *s, json_t *messages, const json_t *tools,
                              const json_t *variables, bool add_generation_prompt, int64_t now_unix_s) {
    json_t *v = json_pack("{s:s, s:s}", "bos_token", t->bos_text, "eos_token", t->eos_text);
    bool ok = v && chat_source_put_defaults(s, tools, now_unix_s, v);
    ok = ok && (!variables || json_object_update(v, (json_t *)(uintptr_t)variables) == 0);
    ok = ok && json_object_set(v, "messages", messages) == 0;
    ok = ok && (!tools || json_object_set(v, "tools", (json_t *)(uintptr_t)tools) == 0);
    ok = ok && json_object_set_new(v, "add_generation_prompt", json_boolean(add_generation_prompt)) == 0;
    if (!ok) {
        json_decref(v);
        v = NULL;
    }
    return v;
}

mr_status chat_source_render(const mr_chat_template *t, const chat_source *s, json_t *messages, const json_t *tools,
                             const json_t *variables, bool add_generation_prompt, mr_text_buf *out, mr_err *err) {
    int64_t now_unix_s = (int64_t)time(NULL);
    json_t *v =
        make_variables(t, s, messages, s->can.tools ? tools : NULL, variables, add_generation_prompt, now_unix_s);
    if (!v)
        return no_memory(err);
    mr_status status = mr_jinja_render(s->jinja, v, NULL, now_unix_s, out, err);
    json_decref(v);
    return status;
}

static mr_status adapt_and_render(const chat_request *r, const json_t *said, mr_text_buf *out, mr_err *err) {
    json_t *messages = chat_messages_adapt(&r->source->can, said, r->tools);
    if (!messages)
        return no_memory(err);
    mr_status status =
        chat_source_render(r->t, r->source, messages, r->tools, r->variables, r->add_generation_prompt, out, err);
    json_decref(messages);
    return status;
}

/* Whether the template takes the first n messages; n of 0 stands for a short message of the user. */
static bool takes(const chat_request *r, const json_t *said, size_t n) {
    json_t *first = n ? json_array() : json_pack("[{s:s, s:s}]", "role", "user", "content", "x");
    mr_text_buf text = {0};
    mr_err ignored;
    bool ok = first != NULL;
    for (size_t i = 0; ok && i < n; i++)
        ok = json_array_append(first, json_array_get(said, i)) == 0;
    ok = ok && adapt_and_render(r, first, &text, &ignored) == MR_OK;
    mr_text_buf_deinit(&text);
    json_decref(first);
    return ok;
}

/* Puts the index of the message that the template refuses in front of the error: the one behind messages that the
 * template takes. There is none where it refuses any message, because of other variables. */
static void blame(const chat_request *r, const json_t *said, mr_err *err) {
    size_t good = 0, bad = json_array_size(said);
    if (!bad || !takes(r, said, 0))
        return;
    while (bad - good > 1) {
        size_t middle = good + (bad - good) / 2;
        *(takes(r, said, middle) ? &good : &bad) = middle;
    }
    mr_err_prefix(err, "messages[%zu]", good);
}

/* Adds descriptions and parameters where tools have none, which OpenAI's API lets clients leave out and some templates
 * need. */
static bool complete(json_t *tools) {
    json_t *usual = json_pack("{s:s, s:{s:s, s:{}}}", "description", "", "parameters", "type", "object", "properties");
    json_t *tool;
    size_t i;
    bool ok = usual != NULL;
    json_array_foreach(tools, i, tool) {
        json_t *function = json_object_get(tool, "function");
        ok = ok && (!function || json_object_update_missing(function, usual) == 0);
    }
    json_decref(usual);
    return ok;
}

static mr_status render(const chat_request *r, const json_t *said, mr_text_buf *out, mr_err *err) {
    size_t before = out->len;
    mr_status status = adapt_and_render(r, said, out, err);
    if (status == MR_E_INVALID && r->tools)
        status = complete(r->tools) ? adapt_and_render(r, said, out, err) : no_memory(err);
    if (status != MR_OK) {
        mr_err_prefix(err, "chat template");
        if (status == MR_E_INVALID)
            blame(r, said, err);
        return status;
    }
    status = chat_prompt_check(&r->source->can, said, !r->variables || !json_object_size(r->variables),
                               (mr_str){out->data + before, out->len - before}, err);
    if (status != MR_OK)
        out->data[out->len = before] = 0;
    return status;
}

mr_status mr_chat_template_render(const mr_chat_template *t, const json_t *messages, const json_t *tools,
                                  const json_t *extra_variables, bool add_generation_prompt, mr_text_buf *out,
                                  mr_err *err) {
    json_t *own_tools = json_array_size(tools) ? chat_without_nulls(tools) : NULL, *said = NULL;
    const chat_source *s = own_tools && t->with_tools.jinja ? &t->with_tools : &t->plain;
    chat_request r = {.t = t,
                      .source = s,
                      .tools = own_tools,
                      .variables = extra_variables,
                      .add_generation_prompt = add_generation_prompt};
    mr_status status = json_array_size(tools) && !own_tools ? no_memory(err) : chat_messages_read(messages, &said, err);
    if (status == MR_OK)
        status = render(&r, said, out, err);
    json_decref(said);
    json_decref(own_tools);
    return status;
}
