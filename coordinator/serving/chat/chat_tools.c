/* coordinator/serving/chat/chat_tools.c - makes a grammar that forces a tool call. The grammar follows the pattern of
 * the form in which the model writes tool calls. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/chat/chat_formats.h"
#include "coordinator/serving/chat/chat_grammar.h"
#include "coordinator/serving/chat/chat_schema.h"
#include "coordinator/serving/json/json.h"
#include "coordinator/serving/schema/schema.h"
#include "engine/base/log.h"

typedef struct writer {
    gbnf_text g;     /* the root, and rules that refer to rules in `to` */
    mr_text_buf *to; /* rules of schemas, each of them complete */
    const chat_tool_calls *calls;
    const char *pattern; /* of one call */
    bool strict;         /* of the tool whose rules are being written */
    bool needs_value;    /* rule value: text up to the end of a value */
    mr_err *err;
} writer;

static mr_status no_memory(mr_err *err) {
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the grammar of a tool call");
}

/* Appends the rules of a schema, `name` and name-..., to the complete rules. */
static mr_status add_schema(writer *w, const json_t *schema, const char *name) {
    char *text = mr_json_dump(schema, JSON_COMPACT);
    if (!text)
        return no_memory(w->err);
    mr_status status = mr_grammar_schema_to_gbnf(mr_str_from(text), w->strict, name, w->to, w->err);
    free(text);
    return status;
}

/* The parameters as the schema of an object, a new reference; NULL: no memory. */
static json_t *object_schema(const json_t *parameters) {
    json_t *own = json_copy((json_t *)parameters);
    if (own && !json_object_get(own, "type") && json_object_set_new(own, "type", json_string("object")) != 0) {
        json_decref(own);
        return NULL;
    }
    return own;
}

/* Appends the JSON object of the arguments of tool i to the present rule. */
static mr_status put_arguments(writer *w, const json_t *tool, int i) {
    const json_t *parameters = json_object_get(tool, "parameters");
    char name[32];
    if (!json_is_object(parameters) || !json_object_size(parameters)) {
        gbnf_literal(&w->g, mr_str_from("{}"));
        return MR_OK;
    }
    snprintf(name, sizeof name, "args%d", i);
    json_t *schema = object_schema(parameters);
    if (!schema)
        return no_memory(w->err);
    mr_status status = add_schema(w, schema, name);
    json_decref(schema);
    gbnf_put(&w->g, name);
    gbnf_put(&w->g, " ");
    return status;
}

/* Whether a key can be written without quotes. */
static bool can_be_bare(const char *key) {
    size_t n = strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
    return n > 0 && n <= CHAT_MAX_NAME_BYTES && !key[n];
}

/* The field of a pattern that is a list of calls; NULL: the pattern is of one call. */
static const char *list_field(const char *pattern) {
    return strpbrk(pattern, PAT_CALLS PAT_NAMED PAT_PYTHON);
}

/* The schema of a property with the definitions that its references name, a new reference; NULL: no memory. */
static json_t *with_definitions(const json_t *parameters, const json_t *schema) {
    static const char *const DEFINITIONS[] = {"$defs", "definitions"};
    json_t *own = json_is_object(schema) ? json_copy((json_t *)schema) : json_incref((json_t *)schema);
    for (int i = 0; own && i < 2 && json_is_object(schema); i++) {
        json_t *definitions = json_object_get(parameters, DEFINITIONS[i]);
        if (definitions && json_object_set(own, DEFINITIONS[i], definitions) != 0) {
            json_decref(own);
            return NULL;
        }
    }
    return own;
}

/* A value that is text, up to the mark behind it. */
static mr_status put_text_value(writer *w, const json_t *parameters, const json_t *schema, const char *rule,
                                const char *mark) {
    json_t *own = with_definitions(parameters, schema);
    char *text = own ? json_dumps(own, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const mr_schema_text desc = {.json_schema = mr_str_from(text ? text : ""),
                                 .strict = w->strict,
                                 .name = rule,
                                 .lead = mr_str_from(strchr(w->pattern, PAT_LINES[0]) ? "\n" : ""),
                                 .mark = {mark, pat_literal_bytes(mark)}};
    bool is_any = false;
    mr_status status = text ? mr_grammar_text_to_gbnf(&desc, w->to, &is_any, w->err) : no_memory(w->err);
    free(text);
    json_decref(own);
    w->needs_value = w->needs_value || is_any;
    gbnf_put(&w->g, is_any ? "value-0" : rule);
    gbnf_put(&w->g, " ");
    return status;
}

/* A value that is JSON. */
static mr_status put_json_value(writer *w, const json_t *parameters, const json_t *schema, const char *rule,
                                const char *mark) {
    json_t *own = with_definitions(parameters, schema);
    mr_status status = own ? add_schema(w, own, rule) : no_memory(w->err);
    json_decref(own);
    gbnf_put(&w->g, rule);
    gbnf_put(&w->g, strchr(w->pattern, PAT_LINES[0]) ? " \"\\n\" " : " ");
    gbnf_literal(&w->g, (mr_str){mark, pat_literal_bytes(mark)});
    return status;
}

/* One of the names of the types. */
static void put_types(writer *w, unsigned types) {
    static const struct {
        unsigned type;
        const char *literal;
    } NAMES[] = {{CHAT_TYPE_STRING, "\"string\" "}, {CHAT_TYPE_NUMBER, "\"number\" "}, {CHAT_TYPE_BOOL, "\"boolean\" "},
                 {CHAT_TYPE_NULL, "\"null\" "},     {CHAT_TYPE_OBJECT, "\"object\" "}, {CHAT_TYPE_ARRAY, "\"array\" "}};
    int n = 0;
    if (!types)
        types = CHAT_TYPE_OBJECT; /* strings that have to be JSON */
    gbnf_put(&w->g, "( ");
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++)
        if (types & NAMES[i].type) {
            gbnf_put(&w->g, n++ ? "| " : "");
            gbnf_put(&w->g, NAMES[i].literal);
        }
    gbnf_put(&w->g, ") ");
}

/* Whether a value of the schema is written as text, not as JSON. */
static bool is_text_schema(const json_t *schema) {
    return chat_schema_types(schema) == CHAT_TYPE_STRING && !json_is_array(json_object_get(schema, "anyOf")) &&
           !json_is_array(json_object_get(schema, "oneOf"));
}

static bool is_required(const json_t *parameters, const char *name) {
    const json_t *v;
    size_t i;
    bool must = false;
    json_array_foreach(json_object_get(parameters, "required"), i, v) must =
        must || (json_is_string(v) && strcmp(json_string_value(v), name) == 0);
    return must;
}

static mr_status put_property(writer *w, const json_t *parameters, const char *name, const char *rule) {
    const json_t *schema = json_object_get(json_object_get(parameters, "properties"), name);
    bool is_text = is_text_schema(schema);
    mr_status status = MR_OK;
    for (const char *p = strchr(w->pattern, PAT_LOOP[0]) + 1; status == MR_OK && *p != PAT_LOOP_END[0];) {
        size_t n = pat_literal_bytes(p);
        bool is_value = *p == PAT_VALUE[0] || *p == PAT_LINES[0] || *p == PAT_TREE[0];
        if (n) {
            gbnf_literal(&w->g, (mr_str){p, n});
            p += n;
            continue;
        }
        if (*p == PAT_KEY[0] || *p == PAT_KEY_END[0])
            gbnf_literal(&w->g, mr_str_from(name));
        else if (*p == PAT_IS_TEXT[0])
            gbnf_literal(&w->g, mr_str_from(is_text ? "true" : "false"));
        else if (*p == PAT_TYPE[0])
            put_types(w, is_text ? CHAT_TYPE_STRING : chat_schema_types(schema) & ~CHAT_TYPE_STRING);
        else if (!is_value)
            gbnf_literal(&w->g, (mr_str){p, 1});
        p++;
        if (!is_value)
            continue;
        if (p[-1] == PAT_LINES[0])
            gbnf_put(&w->g, "\"\\n\" ");
        status =
            is_text ? put_text_value(w, parameters, schema, rule, p) : put_json_value(w, parameters, schema, rule, p);
        p += pat_literal_bytes(p);
    }
    return status;
}

/* Refuses keywords of the parameters that the form cannot honour if the tool is strict. */
static mr_status check_parameters(const writer *w, const json_t *parameters) {
    static const char *const KNOWN[] = {"type", "properties", "required", "additionalProperties",
                                        "unevaluatedProperties"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)parameters, key, value) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++)
            is_known = is_known || strcmp(key, KNOWN[i]) == 0;
        if (!is_known && w->strict)
            return mr_err_set(
                w->err, MR_E_UNSUPPORTED,
                "parameters: keyword \"%.60s\" cannot be honoured in the form in which this model calls tools", key);
        if (!is_known)
            mr_log_write(MR_LOG_DEBUG, "schema",
                         "keyword \"%.60s\" of parameters is not honoured in this form of calls", key);
    }
    return MR_OK;
}

/* The parameters of a tool as one object with properties, and with its definitions. */
static mr_status merge_parameters(const writer *w, const json_t *tool, json_t **out) {
    static const char *const DEFINITIONS[] = {"$defs", "definitions"};
    const json_t *parameters = json_object_get(tool, "parameters");
    mr_status status = mr_schema_merged(json_is_object(parameters) ? parameters : json_true(), w->strict, out, w->err);
    if (status == MR_OK)
        status = check_parameters(w, *out);
    for (size_t i = 0; status == MR_OK && i < sizeof DEFINITIONS / sizeof DEFINITIONS[0]; i++) {
        json_t *definitions = json_object_get(parameters, DEFINITIONS[i]);
        if (definitions && json_object_set(*out, DEFINITIONS[i], definitions) != 0)
            status = no_memory(w->err);
    }
    return status;
}

/* Arguments in tags, in the order of the schema. */
static mr_status put_properties(writer *w, const json_t *tool, int number) {
    json_t *parameters = NULL;
    mr_status status = merge_parameters(w, tool, &parameters);
    const char *name;
    json_t *schema;
    int at = 0;
    json_object_foreach(json_object_get(parameters, "properties"), name, schema) {
        char rule[40];
        bool must = is_required(parameters, name);
        if (status != MR_OK)
            break;
        if (strpbrk(name, "<>\"\n") || !*name) {
            status = mr_err_set(w->err, MR_E_UNSUPPORTED,
                                "the name of property \"%.60s\" cannot be written in the form of this model", name);
            break;
        }
        snprintf(rule, sizeof rule, "args%dx%d", number, at++);
        gbnf_put(&w->g, must ? "" : "( ");
        status = put_property(w, parameters, name, rule);
        gbnf_put(&w->g, must ? "" : ")? ");
    }
    json_decref(parameters);
    return status;
}

/* Rule `rule`: one argument of Python or Gemma, key and value. */
static mr_status put_keyed_argument(writer *w, const json_t *parameters, const char *name, const char *rule) {
    const json_t *schema = json_object_get(json_object_get(parameters, "properties"), name);
    bool is_python = strchr(w->pattern, PAT_PYTHON[0]) != NULL;
    char value[48];
    mr_status status;
    if (!can_be_bare(name))
        return mr_err_set(w->err, MR_E_UNSUPPORTED,
                          "the name of property \"%.60s\" cannot be written in the form of this model", name);
    snprintf(value, sizeof value, "%s-value", rule);
    gbnf_putf(&w->g, "%s ::= ", rule);
    gbnf_literal(&w->g, mr_str_from(name));
    gbnf_put(&w->g, is_python ? "\"=\" " : "\":\" ");
    if (is_python || !is_text_schema(schema)) {
        status = put_json_value(w, parameters, schema, value, "");
    } else {
        gbnf_literal(&w->g, mr_str_from(GEMMA_QUOTE));
        status = put_text_value(w, parameters, schema, value, GEMMA_QUOTE);
    }
    gbnf_put(&w->g, "\n");
    return status;
}

/* Arguments with commas in between, in the order of the schema. Rule argsIxK is argument K; firstIxK are the arguments
 * from K on where none is written yet, and restIxK where one is. */
static mr_status put_keyed(writer *w, const json_t *tool, int number) {
    json_t *parameters = NULL;
    mr_text_buf rules = {0};
    const gbnf_text present = w->g;
    const char *name, *comma = strchr(w->pattern, PAT_PYTHON[0]) ? ", " : ",";
    json_t *schema;
    int at = 0;
    mr_status status = merge_parameters(w, tool, &parameters);
    w->g = (gbnf_text){.buf = &rules};
    json_object_foreach(json_object_get(parameters, "properties"), name, schema) {
        char rule[40];
        if (status != MR_OK)
            break;
        bool must = is_required(parameters, name);
        snprintf(rule, sizeof rule, "args%dx%d", number, at);
        status = put_keyed_argument(w, parameters, name, rule);
        gbnf_putf(&w->g, "rest%dx%d ::= \"%s\" %s rest%dx%d ", number, at, comma, rule, number, at + 1);
        gbnf_putf(&w->g, must ? "\n" : "| rest%dx%d\n", number, at + 1);
        gbnf_putf(&w->g, "first%dx%d ::= %s rest%dx%d ", number, at, rule, number, at + 1);
        gbnf_putf(&w->g, must ? "\n" : "| first%dx%d\n", number, at + 1);
        at++;
    }
    gbnf_putf(&w->g, "rest%dx%d ::= \"\"\nfirst%dx%d ::= \"\"\n", number, at, number, at);
    bool failed = w->g.failed || !mr_text_buf_append(w->to, rules.data ? rules.data : "", rules.len);
    mr_text_buf_deinit(&rules);
    json_decref(parameters);
    w->g = present;
    gbnf_putf(&w->g, "first%dx0 ", number);
    return status == MR_OK && failed ? no_memory(w->err) : status;
}

/* {"name": ..., "arguments": ...} */
static mr_status put_object(writer *w, const json_t *tool, const char *name, int i) {
    const chat_tool_calls *c = w->calls;
    char text[CHAT_MAX_NAME_BYTES + 80];
    snprintf(text, sizeof text, "{\"%s\": \"%s\", \"%s\": ", c->name_key ? c->name_key : "name", name,
             c->args_key ? c->args_key : "arguments");
    gbnf_literal(&w->g, mr_str_from(text));
    mr_status status = put_arguments(w, tool, i);
    gbnf_literal(&w->g, mr_str_from("}"));
    return status;
}

/* {"the name": arguments} */
static mr_status put_named(writer *w, const json_t *tool, const char *name, int i) {
    gbnf_put(&w->g, "\"{\\\"\" ");
    gbnf_literal(&w->g, mr_str_from(name));
    gbnf_put(&w->g, "\"\\\": \" ");
    mr_status status = put_arguments(w, tool, i);
    gbnf_put(&w->g, "\"}\" ");
    return status;
}

/* name(key=value, ...), or only the arguments in braces. */
static mr_status put_brackets(writer *w, const json_t *tool, const char *name, int i) {
    gbnf_literal(&w->g, mr_str_from(name));
    gbnf_put(&w->g, *name ? "\"(\" " : "\"{\" ");
    mr_status status = put_keyed(w, tool, i);
    gbnf_put(&w->g, *name ? "\")\" " : "\"}\" ");
    return status;
}

static mr_status put_field(writer *w, char field, const json_t *tool, const char *name, int i) {
    switch (field) {
    case PART_NAME:
        gbnf_literal(&w->g, mr_str_from(name));
        return MR_OK;
    case PART_ID:
        gbnf_put(&w->g, "[a-zA-Z0-9]{9} ");
        return MR_OK;
    case PART_SKIP:
        gbnf_literal(&w->g, mr_str_from(w->calls->skipped ? w->calls->skipped : ""));
        return MR_OK;
    case PART_ARGS:
        return put_arguments(w, tool, i);
    case PART_CALL:
    case PART_CALLS:
        return put_object(w, tool, name, i);
    case PART_LOOP:
        return put_properties(w, tool, i);
    case PART_NAMED:
        return put_named(w, tool, name, i);
    case PART_PYTHON:
        return put_brackets(w, tool, name, i);
    case PART_OBJECT:
        return put_brackets(w, tool, "", i);
    case PART_NUMBER:
        gbnf_put(&w->g, "[1-9] [0-9]? ");
        return MR_OK;
    case PART_FULL_NAME:
        gbnf_literal(&w->g, mr_str_from("functions."));
        gbnf_literal(&w->g, mr_str_from(name));
        gbnf_put(&w->g, "\":\" [0-9]{1,3} ");
        return MR_OK;
    default:
        return MR_OK;
    }
}

/* Rule call<i>: one call of tool i; in a list, one object of the list. */
static mr_status put_call(writer *w, const json_t *tool, const char *name, int i) {
    const char *list = list_field(w->pattern);
    const char *p = list ? list : w->pattern;
    mr_status status = MR_OK;
    gbnf_putf(&w->g, "call%d ::= ", i);
    while (status == MR_OK && *p && !(list && p > list)) {
        size_t n = pat_literal_bytes(p);
        while (pat_is_space(p[n]))
            n++;
        if (n) {
            gbnf_literal(&w->g, (mr_str){p, n});
            p += n;
            continue;
        }
        status = put_field(w, *p, tool, name, i);
        p = *p == PAT_LOOP[0] ? strchr(p, PAT_LOOP_END[0]) + 1 : p + 1;
    }
    gbnf_put(&w->g, "\n");
    return status;
}

/* Rules for all tools that may be called, and the rule `call`, which is one of these. */
static mr_status put_calls(writer *w, const mr_chat_tools_desc *d) {
    const json_t *tool;
    size_t i;
    int n = 0;
    mr_text_buf choice = {0};
    gbnf_text names = {.buf = &choice};
    mr_status status = MR_OK;
    json_array_foreach(d->tools, i, tool) {
        const json_t *function = chat_tool_function(tool);
        const char *name = json_string_value(json_object_get(function, "name"));
        if (status != MR_OK || (d->name && !(name && strcmp(d->name, name) == 0)))
            continue;
        if (!name || !mr_chat_is_tool_name(mr_str_from(name)))
            status = mr_err_set(w->err, MR_E_INVALID,
                                "the name of tool %zu is not 1 to %d letters, digits, _, -, ., / and :", i,
                                CHAT_MAX_NAME_BYTES);
        else {
            w->strict = json_is_true(json_object_get(function, "strict"));
            status = put_call(w, function, name, (int)i);
        }
        gbnf_putf(&names, n++ ? " | call%d" : "call%d", (int)i);
    }
    if (status == MR_OK && !n)
        status = mr_err_set(w->err, MR_E_NOT_FOUND, "no tool is called \"%.60s\"", d->name ? d->name : "");
    gbnf_put(&w->g, "call ::= ");
    gbnf_put(&w->g, choice.data ? choice.data : "");
    gbnf_put(&w->g, "\n");
    w->g.failed = w->g.failed || names.failed;
    mr_text_buf_deinit(&choice);
    return status;
}

static bool ends_in(mr_str text, const char *end) {
    size_t n = strlen(end);
    return n == 0 || (text.len >= n && memcmp(text.data + text.len - n, end, n) == 0);
}

static bool in_reasoning(const mr_chat_tools_desc *d) {
    mr_str words = d->prompt;
    while (words.len && strchr(" \n\r\t", words.data[words.len - 1]) && words.data[words.len - 1])
        words.len--;
    return ends_in(words, d->format.reasoning->open);
}

/* Appends one `call`, or several with `between` in between (which may be empty). */
static void put_repeated(writer *w, const char *between) {
    gbnf_put(&w->g, "call ( ");
    gbnf_literal(&w->g, mr_str_from(between));
    gbnf_put(&w->g, "call )* ");
}

/* Leaves out the beginning of the text that the prompt ends with. */
static const char *behind_prompt(mr_str prompt, const char *text) {
    for (size_t n = strlen(text); n > 0; n--)
        if (prompt.len >= n && memcmp(prompt.data + prompt.len - n, text, n) == 0)
            return text + n;
    return text;
}

static void put_root(writer *w, const mr_chat_tools_desc *d, const char *prefix) {
    const chat_tool_calls *c = w->calls;
    const char *list = list_field(w->pattern);
    gbnf_put(&w->g, "root ::= ");
    if (in_reasoning(d))
        gbnf_put(&w->g, "think-0 [\\n]{0,2} ");
    gbnf_literal(&w->g, mr_str_from(behind_prompt(d->prompt, c->before ? c->before : "")));
    gbnf_literal(&w->g, mr_str_from(c->section ? c->section : ""));
    if (!ends_in(d->prompt, prefix))
        gbnf_literal(&w->g, mr_str_from(prefix));
    if (list) {
        gbnf_literal(&w->g, (mr_str){w->pattern, (size_t)(list - w->pattern)});
        gbnf_put(&w->g, "\"[\" ");
        if (d->parallel)
            put_repeated(w, ", ");
        else
            gbnf_put(&w->g, "call ");
        gbnf_put(&w->g, "\"]\" ");
        gbnf_literal(&w->g, mr_str_from(list + 1));
    } else if (d->parallel && c->between) {
        char between[PAT_MAX_BYTES];
        snprintf(between, sizeof between, "%s%s", c->between, prefix);
        put_repeated(w, between);
    } else {
        gbnf_put(&w->g, "call ");
    }
    gbnf_literal(&w->g, mr_str_from(c->section_end ? c->section_end : ""));
    gbnf_put(&w->g, "\n");
    if (in_reasoning(d))
        gbnf_text_until(&w->g, "think", d->format.reasoning->close);
}

/* The rule `value`: text up to the first occurrence of the literal behind the value. */
static void put_value_rules(writer *w) {
    char mark[PAT_MAX_BYTES] = GEMMA_QUOTE;
    const char *field = strpbrk(w->pattern, PAT_VALUE PAT_LINES PAT_TREE);
    if (field)
        snprintf(mark, sizeof mark, "%.*s", (int)pat_literal_bytes(field + 1), field + 1);
    gbnf_text_until(&w->g, "value", mark);
}

mr_status mr_chat_tools_grammar(const mr_chat_tools_desc *d, mr_text_buf *out, mr_err *err) {
    mr_text_buf own = {0}, complete = {0};
    const chat_tool_calls *c = d->format.calls;
    writer w = {.g = {.buf = &own}, .to = &complete, .calls = c, .pattern = c->calls[0], .err = err};
    const char *prefix =
        c->prompt_end && strncmp(w.pattern, c->prompt_end, strlen(c->prompt_end)) == 0 ? c->prompt_end : "";
    w.pattern += strlen(prefix);
    put_root(&w, d, prefix);
    mr_status status = put_calls(&w, d);
    if (status == MR_OK && w.needs_value)
        put_value_rules(&w);
    if (status == MR_OK && (w.g.failed || !mr_text_buf_reserve(out, own.len + complete.len)))
        status = no_memory(err);
    if (status == MR_OK && !(mr_text_buf_append(out, own.data, own.len) &&
                             mr_text_buf_append(out, complete.data ? complete.data : "", complete.len)))
        status = no_memory(err);
    mr_text_buf_deinit(&own);
    mr_text_buf_deinit(&complete);
    return status;
}
