/* coordinator/serving/schema/schema.c - turns a JSON schema into GBNF: keeps the list of rules and writes the
 * alternatives of each rule. The values of each type are written in files of their own. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/schema/schema.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/serving/json/json.h"
#include "coordinator/serving/schema/json_rules.h"
#include "coordinator/serving/schema/schema_internal.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/grow.h"
#include "engine/text/utf8.h"

enum {
    MAX_ONE_OF = 128,   /* alternatives of one oneOf; every pair is compared */
    MAX_WORK = 1 << 24, /* comparisons of values: a few tenths of a second */
    MAX_MERGED = 1024,  /* merged schemas; each new one is compared with all earlier ones */
};

mr_status schema_fail(schema_writer *w, mr_status status, const char *fmt, ...) {
    if (w->status == MR_OK) {
        va_list args;
        va_start(args, fmt);
        mr_err_setv(w->err, status, fmt, args);
        va_end(args);
        w->status = status;
    }
    return w->status;
}

static const char *path_of(const schema_writer *w) {
    const char *path = w->n_rules ? w->rules[w->now].path : "";
    return path[0] ? path : "/";
}

bool schema_widen(schema_writer *w, const char *keyword, const char *why) {
    if (w->strict)
        schema_refuse(w, keyword, why);
    else
        mr_log_write(MR_LOG_DEBUG, "schema", "keyword \"%s\" at %s is not honoured: %s", keyword, path_of(w), why);
    return w->status == MR_OK;
}

void schema_note(schema_writer *w, const char *keyword, const char *why) {
    mr_log_write(MR_LOG_DEBUG, "schema", "keyword \"%s\" at %s has no effect: %s", keyword, path_of(w), why);
}

bool schema_can_go_on(schema_writer *w) {
    if (w->status == MR_OK && !text_sets_recover(&w->texts)) {
        if (w->texts.problem == TEXT_NO_MEMORY)
            schema_no_memory(w);
        else
            schema_fail(w, MR_E_TOO_LONG, "schema: it takes too long to compile");
    }
    return w->status == MR_OK;
}

mr_status schema_refuse(schema_writer *w, const char *keyword, const char *why) {
    char name[64];
    mr_utf8_printable(mr_str_from(keyword), name, sizeof name);
    return schema_fail(w, MR_E_UNSUPPORTED, "schema: keyword \"%s\" at %s: %s", name, path_of(w), why);
}

mr_status schema_bad_type(schema_writer *w, const char *keyword, const char *wanted) {
    return schema_fail(w, MR_E_FORMAT, "schema: keyword \"%s\" at %s: %s is wanted", keyword, path_of(w), wanted);
}

mr_status schema_no_memory(schema_writer *w) {
    return schema_fail(w, MR_E_NO_MEMORY, "no memory for the rules of a schema");
}

bool schema_spend(schema_writer *w, size_t a, size_t b) {
    w->work += (uint64_t)a * b + 1;
    if (w->work > MAX_WORK)
        schema_fail(w, MR_E_TOO_LONG, "schema: it takes too long to compile");
    return w->status == MR_OK;
}

static void append(schema_writer *w, mr_text_buf *buf, const char *bytes, size_t n) {
    if (w->status)
        return;
    if (w->out->len + w->body.len + n > MR_GRAMMAR_MAX_TEXT_BYTES)
        schema_fail(w, MR_E_TOO_LONG, "schema: its rules are longer than %d bytes", MR_GRAMMAR_MAX_TEXT_BYTES);
    else if (!mr_text_buf_append(buf, bytes, n))
        schema_no_memory(w);
}

void schema_put(schema_writer *w, mr_text_buf *buf, const char *fmt, ...) {
    char text[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    MR_ASSERT(n >= 0 && n < (int)sizeof text);
    append(w, buf, text, (size_t)n);
}

void schema_put_bytes(schema_writer *w, mr_text_buf *buf, mr_str bytes) {
    if (bytes.len)
        append(w, buf, bytes.data, bytes.len);
}

void schema_put_literal(schema_writer *w, mr_text_buf *buf, mr_str bytes) {
    append(w, buf, "\"", 1);
    for (size_t i = 0; i < bytes.len; i++) {
        char escaped[8];
        append(w, buf, escaped, mr_gbnf_escape(bytes.data[i], escaped));
    }
    append(w, buf, "\"", 1);
}

void schema_put_value(schema_writer *w, mr_text_buf *buf, const json_t *value) {
    /* Real numbers are written with the fewest digits, 15 to 17, that read back as the same value. */
    for (int precision = 15; precision <= 17; precision++) {
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(precision));
        json_t *again = text && precision < 17 ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        bool same = text && (precision == 17 || (again && json_equal((json_t *)value, again)));
        if (same)
            schema_put_literal(w, buf, mr_str_from(text));
        else if (!text)
            schema_no_memory(w);
        json_decref(again);
        free(text);
        if (same || !text)
            return;
    }
}

static void write_path(schema_writer *w, char *out, const char *key, long index) {
    const char *above = w->n_rules ? w->rules[w->now].path : "";
    char part[64] = "", number[24] = "";
    if (key)
        mr_utf8_printable(mr_str_from(key), part, sizeof part);
    if (index >= 0)
        snprintf(number, sizeof number, "/%ld", index);
    int n = snprintf(out, SCHEMA_PATH_BYTES, "%.*s%s%s%s", SCHEMA_PATH_BYTES - 96, above, key ? "/" : "", part, number);
    MR_ASSERT(n >= 0);
}

size_t schema_rule_of(schema_writer *w, json_t *schema, bool merged, const char *key, long index) {
    for (size_t i = 0; i < w->n_rules; i++)
        if (w->rules[i].schema == schema || (merged && w->rules[i].merged && json_equal(w->rules[i].schema, schema)))
            return i;
    w->n_merged += merged;
    if (w->status || w->n_rules == SCHEMA_MAX_RULES || w->n_merged > MAX_MERGED) {
        schema_fail(w, MR_E_TOO_LONG, "schema: more than %d subschemas", SCHEMA_MAX_RULES);
        return 0;
    }
    if (!mr_grammar_grow(&w->rules, &w->cap_rules, w->n_rules + 1, sizeof *w->rules)) {
        schema_no_memory(w);
        return 0;
    }
    schema_rule rule = {.schema = json_incref(schema), .merged = merged};
    write_path(w, rule.path, key, index);
    w->rules[w->n_rules] = rule;
    return w->n_rules++;
}

bool schema_has_type(const json_t *types, const char *name) {
    size_t i;
    json_t *t;
    json_array_foreach(types, i, t) {
        if (strcmp(json_string_value(t), name) == 0)
            return true;
    }
    return types == NULL;
}

static bool value_has_type(const json_t *types, const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return schema_has_type(types, "object");
    case JSON_ARRAY:
        return schema_has_type(types, "array");
    case JSON_STRING:
        return schema_has_type(types, "string");
    case JSON_INTEGER:
        return schema_has_type(types, "integer") || schema_has_type(types, "number");
    case JSON_REAL:
        return schema_has_type(types, "number");
    case JSON_NULL:
        return schema_has_type(types, "null");
    default:
        return schema_has_type(types, "boolean");
    }
}

/* Whether the number of parts of a value lies between two keywords. */
static bool count_fits(const json_t *keywords, const char *min, const char *max, size_t n) {
    const json_t *low = json_object_get(keywords, min), *high = json_object_get(keywords, max);
    return (!low || (double)n >= json_number_value(low)) && (!high || (double)n <= json_number_value(high));
}

static bool has_required(const json_t *keywords, const json_t *object) {
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(keywords, "required"), i, name) {
        if (!json_object_get(object, json_string_value(name)))
            return false;
    }
    return true;
}

/* Whether a value fits one of the schemas of "not". */
static bool is_excepted(schema_writer *w, const json_t *keywords, const json_t *value) {
    size_t i;
    json_t *schema;
    json_array_foreach(json_object_get(keywords, "not"), i, schema) {
        schema_all all = {0};
        bool fits = schema_flatten(w, schema, &all) == MR_OK && !all.never && json_array_size(all.choices) == 0;
        const json_t *values = json_object_get(all.keywords, "enum"), *v;
        bool listed = !values;
        size_t k;
        json_array_foreach(values, k, v) listed = listed || json_equal(v, (json_t *)value);
        json_object_del(all.keywords, "not"); /* a "not" inside a "not" */
        fits = fits && listed && schema_value_fits(w, all.keywords, value);
        schema_all_deinit(&all);
        if (fits)
            return true;
    }
    return false;
}

bool schema_value_fits(schema_writer *w, const json_t *keywords, const json_t *value) {
    if (!value_has_type(json_object_get(keywords, "type"), value) ||
        (!json_is_string(value) && is_excepted(w, keywords, value)))
        return false;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return count_fits(keywords, "minProperties", "maxProperties", json_object_size(value)) &&
               has_required(keywords, value);
    case JSON_ARRAY:
        return count_fits(keywords, "minItems", "maxItems", json_array_size(value));
    case JSON_STRING:
        return schema_text_fits(w, schema_string_set(w, keywords).all, value);
    case JSON_INTEGER:
    case JSON_REAL:
        return schema_number_fits(w, keywords, value);
    default:
        return true;
    }
}

static void write_enum(schema_writer *w, json_t *all) {
    json_t *value;
    size_t i, n = 0;
    bool alone = json_object_size(all) == 1;
    json_array_foreach(json_object_get(all, "enum"), i, value) {
        if (!alone && !schema_value_fits(w, all, value))
            continue;
        schema_put(w, &w->body, "%s", n++ ? "| " : "");
        schema_put_value(w, &w->body, value);
        schema_put(w, &w->body, " ");
    }
    if (n == 0)
        schema_put(w, &w->body, "[] ");
}

/* "not" is honoured for strings. Widens if it may concern other types. */
static void check_not(schema_writer *w, const json_t *all, const json_t *types) {
    static const char *const others[] = {"null", "boolean", "number", "array", "object"};
    size_t i;
    json_t *schema;
    json_array_foreach(json_object_get(all, "not"), i, schema) {
        schema_all inner = {0};
        bool concerns = false;
        schema_flatten(w, schema, &inner);
        const json_t *its = json_object_get(inner.keywords, "type"), *values = json_object_get(inner.keywords, "enum"),
                     *v;
        bool strings = values != NULL;
        size_t k;
        json_array_foreach(values, k, v) strings = strings && json_is_string(v);
        for (k = 0; k < sizeof others / sizeof *others && !inner.never && !strings; k++) {
            bool integers = k == 2 && schema_has_type(types, "integer") && schema_has_type(its, "integer");
            concerns = concerns || integers || (schema_has_type(types, others[k]) && schema_has_type(its, others[k]));
        }
        schema_all_deinit(&inner);
        if (concerns)
            schema_widen(w, "not", "supported for strings only");
    }
}

/* Writes one alternative for each type that the keywords allow. */
static void write_types(schema_writer *w, json_t *all) {
    const json_t *types = json_object_get(all, "type");
    static const char *const simple[][2] = {{"null", "\"null\""}, {"boolean", "(\"true\" | \"false\")"}};
    size_t n = 0;
    if (json_object_size(all) == 0) {
        schema_put(w, &w->body, "%s-value", w->name);
        return;
    }
    if (json_object_get(all, "enum")) {
        write_enum(w, all);
        return;
    }
    check_not(w, all, types);
    for (size_t i = 0; i < 2; i++)
        if (schema_has_type(types, simple[i][0]))
            schema_put(w, &w->body, "%s%s", n++ ? " | " : "", simple[i][1]);
    if (schema_has_type(types, "number") || schema_has_type(types, "integer")) {
        schema_put(w, &w->body, "%s", n++ ? " | " : "");
        schema_write_number(w, all, !schema_has_type(types, "number"));
    }
    if (schema_has_type(types, "string")) {
        schema_put(w, &w->body, "%s", n++ ? " | " : "");
        schema_write_string(w, all);
    }
    if (schema_has_type(types, "array")) {
        schema_put(w, &w->body, "%s", n++ ? " | " : "");
        schema_write_array(w, all);
    }
    if (schema_has_type(types, "object")) {
        schema_put(w, &w->body, "%s", n++ ? " | " : "");
        schema_write_object(w, all);
    }
    if (n == 0)
        schema_put(w, &w->body, "[]");
}

/* A oneOf whose alternatives are not provably disjoint cannot be honoured, because a grammar cannot exclude a value
 * that is valid for two alternatives. */
static void check_one_of(schema_writer *w, json_t *of) {
    size_t n = json_array_size(of);
    char why[200] = "";
    if (n > MAX_ONE_OF) {
        schema_widen(w, "oneOf", "too many alternatives");
        return;
    }
    schema_all *all = mr_alloc_array(n, sizeof *all);
    if (!all) {
        schema_no_memory(w);
        return;
    }
    for (size_t i = 0; i < n && w->status == MR_OK; i++)
        schema_flatten(w, json_array_get(of, i), &all[i]);
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n && w->status == MR_OK && !*why; k++)
            if (!schema_disjoint(w, &all[i], &all[k]))
                snprintf(why, sizeof why,
                         "alternatives %zu and %zu may both match; hint: give them different types or a required "
                         "property with different constants, or use anyOf",
                         i, k);
    for (size_t i = 0; i < n; i++)
        schema_all_deinit(&all[i]);
    mr_free(all);
    if (*why && w->status == MR_OK)
        schema_widen(w, "oneOf", why);
}

/* Writes an alternative for each schema of the first choice. Each is merged with the keywords and the other choices. */
static void write_choices(schema_writer *w, const schema_all *all) {
    json_t *first = json_array_get(all->choices, 0), *of = json_object_get(first, "of"), *choice;
    size_t n_others = json_array_size(all->choices) - 1, i;
    bool one = json_is_true(json_object_get(first, "one"));
    if (one)
        check_one_of(w, of);
    bool alone = n_others == 0 && json_object_size(all->keywords) == 0;
    json_array_foreach(of, i, choice) {
        json_t *both = alone ? json_incref(choice) : json_pack("{s:[O,O]}", "allOf", all->keywords, choice);
        for (size_t k = 1; both && k <= n_others; k++) {
            json_t *other = json_array_get(all->choices, k);
            const char *key = json_is_true(json_object_get(other, "one")) ? "oneOf" : "anyOf";
            json_array_append_new(json_object_get(both, "allOf"),
                                  json_pack("{s:O}", key, json_object_get(other, "of")));
        }
        if (!both) {
            schema_no_memory(w);
            return;
        }
        bool made = !alone || json_object_get(choice, "allOf");
        size_t rule = schema_rule_of(w, both, made, one ? "oneOf" : "anyOf", (long)i);
        json_decref(both);
        schema_put(w, &w->body, "%s%s-%zu", i ? " | " : "", w->name, rule);
    }
}

static void write_rule(schema_writer *w) {
    schema_all all = {0};
    mr_text_buf_clear(&w->body);
    schema_flatten(w, w->rules[w->now].schema, &all);
    if (w->status == MR_OK) {
        if (all.never)
            schema_put(w, &w->body, "[]");
        else if (json_array_size(all.choices))
            write_choices(w, &all);
        else
            write_types(w, all.keywords);
    }
    schema_all_deinit(&all);
    if (w->now == 0)
        schema_put(w, w->out, "%s ::= ", w->name);
    else
        schema_put(w, w->out, "%s-%zu ::= ", w->name, w->now);
    size_t n = w->body.len;
    if (n)
        append(w, w->out, w->body.data, n);
    mr_text_buf_clear(&w->body);
    schema_put(w, w->out, "\n");
}

static mr_status open_writer(schema_writer *w, mr_str json_schema) {
    mr_err why;
    if (json_schema.len > MR_GRAMMAR_MAX_SCHEMA_BYTES)
        return schema_fail(w, MR_E_TOO_LONG, "a schema of %zu bytes; at most %d are allowed", json_schema.len,
                           MR_GRAMMAR_MAX_SCHEMA_BYTES);
    if (strlen(w->name) > 64)
        return schema_fail(w, MR_E_INVALID, "the name of a schema's rules is longer than 64 bytes");
    if (!text_sets_init(&w->texts))
        return schema_no_memory(w);
    w->root = mr_json_read(json_schema, MR_JSON_UNIQUE_NAMES | MR_JSON_ROUNDED, &why);
    if (!w->root)
        return schema_fail(w, why.status, "schema: no JSON: %s", why.text);
    schema_rule_of(w, w->root, false, NULL, -1);
    return w->status;
}

static void close_writer(schema_writer *w) {
    for (size_t i = 0; i < w->n_rules; i++)
        json_decref(w->rules[i].schema);
    json_decref(w->root);
    text_sets_deinit(&w->texts);
    mr_text_buf_deinit(&w->body);
    mr_text_buf_deinit(&w->number);
    mr_free(w->rules);
}

/* Takes what a failed writer has appended back. */
static mr_status end_rules(schema_writer *w, size_t len) {
    if (w->texts.problem == TEXT_NO_MEMORY)
        schema_no_memory(w);
    close_writer(w);
    if (w->status && w->out->data)
        w->out->data[w->out->len = len] = 0;
    return w->status;
}

mr_status mr_grammar_schema_to_gbnf(mr_str json_schema, bool strict, const char *name, mr_text_buf *out, mr_err *err) {
    schema_writer w = {.name = name, .strict = strict, .out = out, .err = err};
    size_t len = out->len;
    char prefix[80];
    open_writer(&w, json_schema);
    /* Rule 0 has the name of the schema. References to the whole schema use the name with "-0", which is added
     * below. */
    for (w.now = 0; w.now < w.n_rules && w.status == MR_OK; w.now++)
        write_rule(&w);
    schema_put(&w, out, "%s-0 ::= %s\n", name, name);
    snprintf(prefix, sizeof prefix, "%s-", name);
    if (w.status == MR_OK)
        w.status = json_rules_write(prefix, out, err);
    return end_rules(&w, len);
}

mr_status mr_grammar_text_to_gbnf(const mr_schema_text *t, mr_text_buf *out, bool *out_any, mr_err *err) {
    schema_writer w = {.name = t->name, .strict = t->strict, .out = out, .err = err};
    size_t len = out->len;
    schema_all all = {0};
    if (open_writer(&w, t->json_schema) == MR_OK && schema_flatten(&w, w.root, &all) == MR_OK) {
        if (json_array_size(all.choices))
            schema_widen(&w, "anyOf", "not supported for texts without quotes");
        if (all.never)
            schema_put(&w, &w.body, "[] ");
        *out_any = !all.never && !schema_write_bare(&w, all.keywords, t->lead, t->mark);
        if (!*out_any) {
            schema_put(&w, out, "%s ::= ", t->name);
            schema_put_bytes(&w, out, (mr_str){w.body.data, w.body.len});
            schema_put(&w, out, "\n");
        }
    }
    schema_all_deinit(&all);
    return end_rules(&w, len);
}

mr_status mr_schema_merged(const json_t *schema, bool strict, json_t **out, mr_err *err) {
    static const char why[] = "it cannot be honoured in the form in which this model calls tools";
    schema_writer w = {.name = "", .strict = strict, .err = err};
    schema_all all = {0};
    w.root = json_is_object(schema) ? json_copy((json_t *)schema) : json_incref((json_t *)schema);
    if (!w.root)
        return schema_no_memory(&w);
    json_object_del(w.root, "nullable"); /* a call always has arguments */
    if (schema_flatten(&w, w.root, &all) == MR_OK) {
        if (json_array_size(all.choices) && schema_widen(&w, "anyOf", why))
            schema_add_properties(&w, all.choices, all.keywords);
        if (w.status == MR_OK)
            *out = json_incref(all.keywords);
    }
    schema_all_deinit(&all);
    close_writer(&w);
    return w.status;
}

mr_status mr_grammar_from_schema(mr_str json_schema, bool strict, mr_grammar **out, mr_err *err) {
    mr_text_buf text = {0};
    mr_status s = mr_grammar_schema_to_gbnf(json_schema, strict, "root", &text, err);
    if (s == MR_OK)
        s = mr_grammar_parse((mr_str){text.data, text.len}, out, err);
    mr_text_buf_deinit(&text);
    return s;
}

mr_status mr_grammar_any_object(mr_grammar **out, mr_err *err) {
    static const char root[] = "root ::= object\n";
    mr_text_buf text = {0};
    mr_status s = mr_text_buf_append(&text, root, sizeof root - 1) ? json_rules_write("", &text, err)
                                                                   : mr_err_set(err, MR_E_NO_MEMORY, "no memory");
    if (s == MR_OK)
        s = mr_grammar_parse((mr_str){text.data, text.len}, out, err);
    mr_text_buf_deinit(&text);
    return s;
}
