/* coordinator/serving/api/api_chat.c - the part of a call that is special to chats: checks messages and tools, renders
 * them to a prompt by the model's template, makes a grammar where a tool must be called, and opens the parsers that
 * divide the output into reasoning, content and tool calls. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "coordinator/serving/api/api_internal.h"
#include "coordinator/serving/chat/chat_template.h"
#include "coordinator/serving/chat/chat_tools.h"
#include "coordinator/serving/wire/api_json.h"
#include "engine/base/mem.h"
#include "engine/text/utf8.h"

static mr_status find_form(const mr_api *a, bool with_tools, api_form *out, mr_err *err) {
    out->format = mr_chat_template_format(a->config.chat, with_tools);
    return mr_chat_format_needs_special(out->format, a->config.tokenizer, &out->is_special, err);
}

mr_status api_chat_open(mr_api *a, mr_err *err) {
    if (!a->config.chat)
        return MR_OK;
    mr_status status = find_form(a, false, &a->plain, err);
    return status == MR_OK ? find_form(a, true, &a->with_tools, err) : status;
}

static const api_form *form_of(const mr_api_call *call) {
    return call->request.tools ? &call->a->with_tools : &call->a->plain;
}

static bool check_part(const json_t *part, const char *name, mr_api_error *e) {
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type)
        return mr_api_error_set(e, 400, "invalid_type", name, "%s is not an object with a type", name);
    if (mr_str_is(mr_str_from(type), "thinking") || mr_str_is(mr_str_from(type), "reasoning"))
        return true; /* reasoning of an earlier answer */
    if (!mr_str_is(mr_str_from(type), "text"))
        return mr_api_error_set(e, 400, "unsupported_parameter", name,
                                "%s is of type %.32s, and only text is supported", name, type);
    if (!json_is_string(json_object_get(part, "text")))
        return mr_api_error_set(e, 400, "invalid_type", name, "%s has no text", name);
    return true;
}

static bool check_content(const json_t *content, const char *name, mr_api_error *e) {
    if (!content || json_is_null(content) || json_is_string(content))
        return true;
    if (!json_is_array(content))
        return mr_api_error_set(e, 400, "invalid_type", name, "%s is %s, where a string or an array is expected", name,
                                mr_api_json_kind(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        char part[96];
        snprintf(part, sizeof part, "%s[%zu]", name, i);
        if (!check_part(json_array_get(content, i), part, e))
            return false;
    }
    return true;
}

/* at: the place for errors. */
static bool check_tool_name(const json_t *name, const char *at, mr_api_error *e) {
    const char *text = json_string_value(name);
    size_t n = json_string_length(name);
    char shown[2 * CHAT_MAX_NAME_BYTES];
    if (text && mr_chat_is_tool_name((mr_str){text, n}))
        return true;
    if (!text || n == 0)
        return mr_api_error_set(e, 400, "invalid_value", at, "%s has no function with a name", at);
    mr_utf8_printable((mr_str){text, n}, shown, sizeof shown);
    return mr_api_error_set(e, 400, "invalid_value", at,
                            "%s has the function name \"%s\", where 1 to %d letters, digits, _, -, ., / and : are "
                            "allowed",
                            at, shown, CHAT_MAX_NAME_BYTES);
}

/* Checks the names in earlier tool calls of the conversation. mr_chat_template_render checks that these are lists of
 * objects. */
static bool check_tool_calls(const json_t *message, const char *at, mr_api_error *e) {
    const json_t *calls = json_object_get(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        char name[128];
        snprintf(name, sizeof name, "%s.tool_calls[%zu]", at, i);
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        if (!check_tool_name(json_object_get(function, "name"), name, e))
            return false;
    }
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *name = json_object_get(message, "name"), *old = json_object_get(message, "function_call");
    if (old && !json_is_null(old) && !check_tool_name(json_object_get(old, "name"), at, e))
        return false;
    return !mr_str_is(mr_str_from(role), "tool") || !name || json_is_null(name) || check_tool_name(name, at, e);
}

/* Checks what mr_chat_template_render does not check itself. */
static bool check_message(const json_t *message, size_t i, mr_api_error *e) {
    char name[64];
    snprintf(name, sizeof name, "messages[%zu]", i);
    if (!json_is_object(message))
        return mr_api_error_set(e, 400, "invalid_type", name, "%s is %s, where an object is expected", name,
                                mr_api_json_kind(message));
    if (!json_is_string(json_object_get(message, "role")))
        return mr_api_error_set(e, 400, "invalid_type", name, "%s has no role that is a string", name);
    if (!check_tool_calls(message, name, e))
        return false;
    snprintf(name, sizeof name, "messages[%zu].content", i);
    return check_content(json_object_get(message, "content"), name, e);
}

static bool check_messages(const json_t *messages, mr_api_error *e) {
    if (json_array_size(messages) == 0)
        return mr_api_error_set(e, 400, "invalid_value", "messages", "messages is empty");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!check_message(json_array_get(messages, i), i, e))
            return false;
    return true;
}

static const char *tool_name(const json_t *tool) {
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static bool check_tool(const json_t *tool, size_t i, mr_api_error *e) {
    char name[64];
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *function = json_object_get(tool, "function"), *parameters = json_object_get(function, "parameters");
    snprintf(name, sizeof name, "tools[%zu]", i);
    if (!type || !mr_str_is(mr_str_from(type), "function"))
        return mr_api_error_set(e, 400, "invalid_value", name, "%s is not of type function", name);
    if (!check_tool_name(json_object_get(function, "name"), name, e))
        return false;
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return mr_api_error_set(e, 400, "invalid_type", name,
                                "the parameters of %s are %s, where an object is expected", name,
                                mr_api_json_kind(parameters));
    return true;
}

/* Reads tool_choice: a word, or an object that names a function. */
static bool read_tool_choice(api_request *r, mr_api_error *e) {
    const json_t *value = r->tool_choice;
    const char *word = json_string_value(value);
    r->tool_choice_kind = API_TOOLS_AUTO;
    if (!value || (word && mr_str_is(mr_str_from(word), "auto")))
        return true;
    if (word && mr_str_is(mr_str_from(word), "none")) {
        r->tool_choice_kind = API_TOOLS_NONE;
        return true;
    }
    if (json_array_size(r->tools) == 0)
        return mr_api_error_set(e, 400, "invalid_value", "tool_choice", "tool_choice needs tools");
    r->tool_choice_kind = API_TOOLS_REQUIRED;
    if (word && mr_str_is(mr_str_from(word), "required"))
        return true;
    r->tool_chosen = tool_name(value);
    for (size_t i = 0; i < json_array_size(r->tools) && r->tool_chosen; i++)
        if (mr_str_is(mr_str_from(r->tool_chosen), tool_name(json_array_get(r->tools, i))))
            return true;
    return mr_api_error_set(e, 400, "invalid_value", "tool_choice",
                            "tool_choice is none of none, auto, required, and names no function of tools");
}

static bool read_tools(api_request *r, mr_api_error *e) {
    for (size_t i = 0; i < json_array_size(r->tools); i++)
        if (!check_tool(json_array_get(r->tools, i), i, e))
            return false;
    if (!read_tool_choice(r, e))
        return false;
    if (json_array_size(r->tools) == 0 || r->tool_choice_kind == API_TOOLS_NONE)
        r->tools = NULL;
    return true;
}

/* The variables of the template besides messages and tools. NULL: no memory. */
static json_t *template_variables(const api_request *r) {
    json_t *variables = json_object();
    for (int i = 0; i < 2 && r->thinking != API_UNSET; i++) /* templates know one name or the other */
        variables = mr_api_json_put(variables, i ? "thinking" : "enable_thinking", json_boolean(r->thinking == API_ON));
    if (r->clear_thinking)
        variables = mr_api_json_put(variables, "clear_thinking", json_incref((json_t *)r->clear_thinking));
    if (r->template_kwargs && json_object_update(variables, (json_t *)r->template_kwargs) != 0) {
        json_decref(variables);
        return NULL;
    }
    if (r->reasoning_effort.data)
        variables = mr_api_json_put(variables, "reasoning_effort", mr_api_json_text(r->reasoning_effort));
    if (r->documents)
        variables = mr_api_json_put(variables, "documents", json_incref((json_t *)r->documents));
    return variables;
}

/* The content of the last message, if this message is the assistant's; otherwise NULL. */
static const json_t *last_words(const json_t *messages) {
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const json_t *content = json_object_get(last, "content");
    bool is_prefill = role && mr_str_is(mr_str_from(role), "assistant") && json_is_string(content) &&
                      json_array_size(json_object_get(last, "tool_calls")) == 0;
    return is_prefill ? content : NULL;
}

/* Finds the prefill: the content of a last message of the assistant, which the output continues. The default is that of
 * llama-server: such a message is a prefill. continue_final_message can turn the prefill off, or demand one. */
static bool find_prefill(api_request *r, const json_t *messages, const json_t **out, mr_api_error *e) {
    const json_t *asked = json_object_get(r->body, "continue_final_message");
    *out =
        json_is_false(asked) || !(r->add_generation_prompt || r->continue_final_message) ? NULL : last_words(messages);
    if (!r->continue_final_message)
        return true;
    if (json_is_true(json_object_get(r->body, "add_generation_prompt")))
        return mr_api_error_set(e, 400, "invalid_value", "continue_final_message",
                                "continue_final_message and add_generation_prompt cannot both be true");
    r->add_generation_prompt = true; /* the prefill goes behind the generation prompt */
    return *out || mr_api_error_set(e, 400, "invalid_value", "continue_final_message",
                                    "the last message is not of the assistant with a text as its content");
}

static bool render(mr_api_call *call, json_t *messages, mr_text_buf *out) {
    api_request *r = &call->request;
    const json_t *prefill = NULL;
    mr_err err = {0};
    if (!find_prefill(r, messages, &prefill, &call->error))
        return false;
    json_t *variables = template_variables(r);
    if (!variables || (prefill && json_array_remove(messages, json_array_size(messages) - 1) != 0)) {
        json_decref(variables);
        return api_no_memory(&call->error);
    }
    mr_status status = mr_chat_template_render(call->a->config.chat, messages, r->tools, variables,
                                               r->add_generation_prompt, out, &err);
    json_decref(variables);
    if (status != MR_OK && status != MR_E_NO_MEMORY)
        return mr_api_error_set(&call->error, 400, "invalid_value", "messages", "%s", err.text);
    if (status != MR_OK ||
        (prefill && !mr_text_buf_append(out, json_string_value(prefill), json_string_length(prefill))))
        return api_no_memory(&call->error);
    return true;
}

bool api_chat_render(mr_api_call *call, mr_text_buf *out) {
    api_request *r = &call->request;
    const mr_api *a = call->a;
    if (!a->config.chat)
        return mr_api_error_set(&call->error, 400, "unsupported_parameter", NULL, "this model has no chat template");
    if (!check_messages(r->messages, &call->error) || !read_tools(r, &call->error) ||
        !api_read_thinking(r, &call->error))
        return false;
    json_t *messages = json_copy((json_t *)r->messages); /* copies the list; both lists share the messages */
    bool ok = messages ? render(call, messages, out) : api_no_memory(&call->error);
    json_decref(messages);
    return ok;
}

/* Sets a grammar that makes the model write a tool call. */
static bool force_tool_call(mr_api_call *call, mr_str prompt) {
    api_request *r = &call->request;
    mr_text_buf gbnf = {0};
    mr_err err = {0};
    const mr_chat_tools_desc desc = {
        .format = form_of(call)->format,
        .tools = r->tools,
        .name = r->tool_chosen,
        .parallel = r->parallel_tool_calls && !r->tool_chosen,
        .prompt = prompt,
    };
    mr_status status = mr_chat_tools_grammar(&desc, &gbnf, &err);
    bool ok = status == MR_OK ? api_constrain(r, (mr_str){gbnf.data, gbnf.len}, "tools", &call->error)
                              : mr_api_error_set(&call->error, status == MR_E_NO_MEMORY ? 503 : 400, "invalid_value",
                                                 "tools", "tools: %s", err.text);
    mr_text_buf_deinit(&gbnf);
    return ok;
}

bool api_chat_prepare(mr_api_call *call, mr_text_buf *out) {
    api_request *r = &call->request;
    if (!api_chat_render(call, out))
        return false;
    r->parses = r->n_grammar_bytes == 0;
    if (r->tools && !r->parses)
        return mr_api_error_set(&call->error, 400, "invalid_value", "tools",
                                "tools cannot be called where a grammar or response_format says what the answer is");
    if (r->tools && r->tool_choice_kind == API_TOOLS_REQUIRED && !force_tool_call(call, (mr_str){out->data, out->len}))
        return false;
    r->with_special = r->parses && form_of(call)->is_special;
    r->prompts = mr_alloc_array(1, sizeof *r->prompts);
    if (!r->prompts)
        return api_no_memory(&call->error);
    r->n_prompts = 1;
    if (!api_encode_prompt(call->a, r, (mr_str){out->data, out->len}, &r->prompts[0].ids, &call->error))
        return false;
    api_truncate_prompt(call->a, r, &r->prompts[0].ids);
    return r->prompts[0].ids.n > 0 ||
           mr_api_error_set(&call->error, 400, "invalid_value", "messages", "the template makes no prompt of these");
}

bool api_chat_open_parsers(mr_api_call *call, mr_str prompt) {
    const api_request *r = &call->request;
    for (int32_t i = 0; i < call->n_choices && r->parses; i++) {
        char id[sizeof call->id + 16];
        int n = snprintf(id, sizeof id, "%s-%d", call->id, (int)i);
        const mr_chat_output_desc desc = {
            .format = form_of(call)->format,
            .prompt = prompt,
            .tools = r->tools,
            .request_id = {id, (size_t)n},
            .keep_reasoning = mr_str_is(r->reasoning_format, "none"),
            .only_calls = r->tool_choice_kind == API_TOOLS_REQUIRED,
        };
        call->choices[i].only_calls = desc.only_calls;
        call->choices[i].one_tool_call = !r->parallel_tool_calls || r->tool_chosen;
        if (!api_choice_open_parser(&call->choices[i], &desc))
            return api_no_memory(&call->error);
    }
    return true;
}
