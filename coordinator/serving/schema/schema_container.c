/* coordinator/serving/schema/schema_container.c - writes the rules for JSON objects and arrays. Properties come in the
 * order of the schema. Any subset of the optional properties may be left out, which takes one rule for each
 * property. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/serving/schema/schema_internal.h"
#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"

typedef struct property {
    const char *key;
    json_t *schema; /* borrowed; NULL: any value */
    bool required;
} property;

static bool is_required(const json_t *keywords, const char *key) {
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(keywords, "required"), i, name) {
        if (strcmp(json_string_value(name), key) == 0)
            return true;
    }
    return false;
}

/* Lists the described properties in the order of the schema, then the properties that are only required. */
static property *list_properties(schema_writer *w, const json_t *keywords, size_t *out_n) {
    json_t *described = json_object_get(keywords, "properties"), *required = json_object_get(keywords, "required");
    size_t n = 0, i;
    property *list = mr_alloc_array(json_object_size(described) + json_array_size(required), sizeof *list);
    const char *key;
    json_t *value;
    *out_n = 0;
    if (!schema_spend(w, json_object_size(described) + 1, json_array_size(required) + 1)) {
        mr_free(list);
        return NULL;
    }
    if (!list) {
        schema_no_memory(w);
        return NULL;
    }
    json_object_foreach(described, key, value) {
        bool needed = is_required(keywords, key);
        if (needed || !json_is_false(value))
            list[n++] = (property){key, value, needed};
    }
    json_array_foreach(required, i, value) {
        key = json_string_value(value);
        if (!json_object_get(described, key))
            list[n++] = (property){key, json_object_get(keywords, "additionalProperties"), true};
    }
    *out_n = n;
    return list;
}

/* Appends the name of the rule for the values of a schema. */
static void put_value(schema_writer *w, mr_text_buf *buf, json_t *schema, const char *key, long index) {
    if (!schema || json_is_true(schema))
        schema_put(w, buf, "%s-value", w->name);
    else
        schema_put(w, buf, "%s-%zu", w->name,
                   schema_rule_of(w, schema, json_object_get(schema, "allOf") != NULL, key, index));
}

/* Writes the rules NAME-ID-m0, NAME-ID-m1 ...: one property with its value each. */
static void put_members(schema_writer *w, const property *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        json_t *key = json_string(list[i].key);
        char *text = key ? json_dumps(key, JSON_ENCODE_ANY) : NULL;
        if (!text) {
            schema_no_memory(w);
        } else {
            schema_put(w, w->out, "%s-%zu-m%zu ::= ", w->name, w->now, i);
            schema_put_literal(w, w->out, mr_str_from(text));
            schema_put(w, w->out, " \":\" %s-sp ", w->name);
            put_value(w, w->out, list[i].schema, list[i].key, -1);
            schema_put(w, w->out, "\n");
        }
        free(text);
        json_decref(key);
    }
}

/* Writes the rule NAME-ID-x: an additional property, whose name is not in the schema. */
static void put_extra(schema_writer *w, const json_t *keywords, json_t *rest) {
    const json_t *described = json_object_get(keywords, "properties"),
                 *required = json_object_get(keywords, "required");
    size_t n = 0, i;
    mr_str *names = mr_alloc_array(json_object_size(described) + json_array_size(required), sizeof *names);
    const char *key;
    json_t *value;
    if (!names) {
        schema_no_memory(w);
        return;
    }
    json_object_foreach((json_t *)described, key, value) names[n++] = mr_str_from(key);
    json_array_foreach(required, i, value) names[n++] = mr_str_from(json_string_value(value));
    schema_put(w, w->out, "%s-%zu-x ::= \"\\\"\" ", w->name, w->now);
    if (n)
        schema_write_other_keys(w, w->out, names, n);
    else
        schema_put(w, w->out, "%s-char*", w->name);
    schema_put(w, w->out, " \"\\\":\" %s-sp ", w->name);
    put_value(w, w->out, rest, "additionalProperties", -1);
    schema_put(w, w->out, "\n");
    mr_free(names);
}

/* Writes the rules NAME-ID-tI: the rest of an object that has a property already, where only the properties from I on
 * may follow. extra: additional properties are allowed. max: the most properties of an object that has no described
 * property; -1: unbounded. */
static void put_tails(schema_writer *w, const property *list, size_t n, bool extra, long max) {
    for (size_t i = 1; i < n; i++) {
        schema_put(w, w->out, "%s-%zu-t%zu ::= \",\" %s-ws %s-%zu-m%zu %s-%zu-t%zu", w->name, w->now, i, w->name,
                   w->name, w->now, i, w->name, w->now, i + 1);
        if (!list[i].required)
            schema_put(w, w->out, " | %s-%zu-t%zu", w->name, w->now, i + 1);
        schema_put(w, w->out, "\n");
    }
    schema_put(w, w->out, "%s-%zu-t%zu ::= ", w->name, w->now, n ? n : 1);
    if (extra && max > 0)
        schema_put(w, w->out, "(\",\" %s-ws %s-%zu-x){0,%ld}\n", w->name, w->name, w->now, max - 1);
    else if (extra)
        schema_put(w, w->out, "(\",\" %s-ws %s-%zu-x)*\n", w->name, w->name, w->now);
    else
        schema_put(w, w->out, "\"\"\n");
}

/* Appends an object: the properties in order, where optional ones may be left out, then additional ones (extra). */
static void put_object(schema_writer *w, const property *list, size_t n, bool extra, bool not_empty) {
    size_t first = 0, in_a_row = 0;
    schema_put(w, &w->body, "\"{\" %s-ws", w->name);
    for (size_t i = 0; i < n; i++) {
        in_a_row = list[i].required ? 0 : in_a_row + 1;
        if (in_a_row > SCHEMA_MAX_OPTIONAL)
            schema_refuse(w, "properties", "more than 200 in a row that are not required");
    }
    if (n == 0 && !extra) {
        schema_put(w, &w->body, not_empty ? " []" : " \"}\"");
        return;
    }
    schema_put(w, &w->body, " ((");
    for (; first < n; first++) {
        schema_put(w, &w->body, "%s%s-%zu-m%zu %s-%zu-t%zu", first ? " | " : "", w->name, w->now, first, w->name,
                   w->now, first + 1);
        if (list[first].required)
            break;
    }
    bool may_be_empty = first == n;
    if (may_be_empty && extra)
        schema_put(w, &w->body, "%s%s-%zu-x %s-%zu-t%zu", n ? " | " : "", w->name, w->now, w->name, w->now, n ? n : 1);
    schema_put(w, &w->body, ") %s-ws)%s \"}\"", w->name, may_be_empty && !not_empty ? "?" : "");
}

static bool get_count(schema_writer *w, const json_t *keywords, const char *key, long *out) {
    const json_t *v = json_object_get(keywords, key);
    if (v && json_number_value(v) > MR_GRAMMAR_MAX_REPEAT)
        schema_refuse(w, key, "more than 32768");
    *out = v && w->status == MR_OK ? (long)json_number_value(v) : -1;
    return v != NULL;
}

void schema_write_object(schema_writer *w, const json_t *keywords) {
    size_t n = 0;
    json_t *rest = json_object_get(keywords, "additionalProperties");
    bool described = json_object_get(keywords, "properties") != NULL;
    bool extra = rest ? !json_is_false(rest) : !described;
    if (!described && !json_object_get(keywords, "required") && (!rest || json_is_true(rest)) &&
        !json_object_get(keywords, "minProperties") && !json_object_get(keywords, "maxProperties")) {
        schema_put(w, &w->body, "%s-object", w->name);
        return;
    }
    property *list = list_properties(w, keywords, &n);
    long min, max;
    get_count(w, keywords, "minProperties", &min);
    bool bounded = get_count(w, keywords, "maxProperties", &max);
    /* The rules allow an additional name to come twice, which counts as one property. So a minimum above 1 cannot be
     * enforced by counting. */
    if (min > 1 && min > (long)json_array_size(json_object_get(keywords, "required")))
        schema_refuse(w, "minProperties", "more than 1, and more than are required");
    if (bounded && n > 0 && (extra || max < (long)n))
        schema_refuse(w, "maxProperties", "fewer than there may be");
    extra = extra && max != 0;
    if (w->status == MR_OK) {
        put_members(w, list, n);
        put_tails(w, list, n, extra, max);
        if (extra)
            put_extra(w, keywords, rest);
        put_object(w, list, n, extra, min == 1);
    }
    mr_free(list);
}

/* Appends the items behind the first n_prefix items. min and max: of all items of the array; max -1: unbounded. */
static void put_rest(schema_writer *w, json_t *rest, long n_prefix, long min, long max) {
    long least = min > n_prefix ? min - n_prefix : 0, most = max < 0 ? -1 : max - n_prefix;
    if (most == 0)
        return;
    if (n_prefix == 0) {
        schema_put(w, &w->body, " ");
        put_value(w, &w->body, rest, "items", -1);
        least -= least > 0;
        most -= most > 0;
    }
    schema_put(w, &w->body, " (\",\" %s-ws ", w->name);
    put_value(w, &w->body, rest, "items", -1);
    if (most < 0)
        schema_put(w, &w->body, "){%ld,}", least);
    else
        schema_put(w, &w->body, "){%ld,%ld}", least, most);
}

void schema_write_array(schema_writer *w, const json_t *keywords) {
    json_t *prefix = json_object_get(keywords, "prefixItems"), *rest = json_object_get(keywords, "items");
    long min, max, n = (long)json_array_size(prefix);
    get_count(w, keywords, "minItems", &min);
    bool bounded = get_count(w, keywords, "maxItems", &max);
    if (json_object_get(keywords, "uniqueItems"))
        schema_refuse(w, "uniqueItems", "not supported");
    if (n > SCHEMA_MAX_ITEMS)
        schema_refuse(w, "prefixItems", "more than 256 schemas");
    if (!prefix && !rest && min <= 0 && !bounded) {
        schema_put(w, &w->body, "%s-array", w->name);
        return;
    }
    if (json_is_false(rest) && (!bounded || max > n)) {
        max = n;
        bounded = true;
    }
    if (bounded && max < n)
        n = max;
    if (bounded && min > max) {
        schema_put(w, &w->body, "[]");
        return;
    }
    schema_put(w, &w->body, "\"[\" %s-ws", w->name);
    bool empty = min <= 0, none = bounded && max == 0;
    if (!none)
        schema_put(w, &w->body, " (");
    for (long i = 0; i < n; i++) {
        /* Each item opens a group of the comma, the item and all later items. An optional group may be left out. */
        if (i)
            schema_put(w, &w->body, " (\",\" %s-ws ", w->name);
        put_value(w, &w->body, json_array_get(prefix, (size_t)i), "prefixItems", i);
    }
    if (!none)
        put_rest(w, rest, n, min < 0 ? 0 : min, bounded ? max : -1);
    for (long i = n - 1; i > 0; i--)
        schema_put(w, &w->body, ")%s", i + 1 > min ? "?" : "");
    if (!none)
        schema_put(w, &w->body, " %s-ws)%s", w->name, empty ? "?" : "");
    schema_put(w, &w->body, " \"]\"");
}
