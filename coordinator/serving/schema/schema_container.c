/* coordinator/serving/schema/schema_container.c - writes the rules for JSON objects and arrays. Properties come in the
 * order of the schema. Any subset of the optional properties may be left out, which takes one rule for each
 * property. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/serving/schema/schema_internal.h"
#include "coordinator/serving/schema/schema_regex.h"
#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"

typedef struct property {
    const char *key;
    json_t *schema; /* owned; NULL: any value */
    bool required;
} property;

enum { SCHEMA_MAX_PATTERNS = 4, MAX_UNIQUE = 300 };

static bool is_required(const json_t *keywords, const char *key) {
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(keywords, "required"), i, name) {
        if (strcmp(json_string_value(name), key) == 0)
            return true;
    }
    return false;
}

/* What an object allows beside its described properties, and what its names have to be. */
typedef struct object_rest {
    text_set names; /* of all properties */
    text_set patterns[SCHEMA_MAX_PATTERNS];
    json_t *of_pattern[SCHEMA_MAX_PATTERNS]; /* borrowed */
    size_t n_patterns;
    json_t *others; /* borrowed: the schema of additional properties; NULL: any value */
    bool open;      /* there may be additional properties that no pattern matches */
} object_rest;

static bool matches(schema_writer *w, text_set set, const char *name) {
    return set == TEXT_ALL || (schema_can_go_on(w) && text_has(&w->texts, set, mr_str_from(name)));
}

/* The schema of a property: its own, and those of all patterns that match its name, else that of additional properties.
 * Returns a new reference, or NULL for any value. */
static json_t *schema_of_name(schema_writer *w, const object_rest *rest, const char *name, json_t *own, bool required) {
    json_t *schema = own ? json_incref(own) : NULL;
    bool matched = own != NULL;
    for (size_t i = 0; i < rest->n_patterns; i++) {
        if (!matches(w, rest->patterns[i], name))
            continue;
        json_t *both = schema_both(schema, rest->of_pattern[i]);
        json_decref(schema);
        schema = both;
        matched = true;
    }
    return matched ? schema : required || rest->open ? json_incref(rest->others) : json_false();
}

static void add_property(schema_writer *w, property *list, size_t *n, const object_rest *rest, const char *key,
                         json_t *own, bool required) {
    json_t *schema = matches(w, rest->names, key) ? schema_of_name(w, rest, key, own, required) : json_false();
    if (required || !json_is_false(schema))
        list[(*n)++] = (property){key, schema, required};
    else
        json_decref(schema);
}

/* Lists the described properties in the order of the schema, then those that are only required, then the names that
 * propertyNames lists. The caller frees the list and its schemas. */
static property *list_properties(schema_writer *w, const json_t *keywords, const object_rest *rest, json_t *listed,
                                 size_t *out_n) {
    json_t *described = json_object_get(keywords, "properties"), *required = json_object_get(keywords, "required");
    size_t n = 0, i;
    const char *key;
    json_t *value;
    *out_n = 0;
    if (!schema_spend(w, json_object_size(described) + json_array_size(listed) + 1, json_array_size(required) + 1))
        return NULL;
    property *list =
        mr_alloc_array(json_object_size(described) + json_array_size(required) + json_array_size(listed), sizeof *list);
    if (!list) {
        schema_no_memory(w);
        return NULL;
    }
    json_object_foreach(described, key, value) add_property(w, list, &n, rest, key, value, is_required(keywords, key));
    json_array_foreach(required, i, value) {
        key = json_string_value(value);
        if (!json_object_get(described, key))
            add_property(w, list, &n, rest, key, NULL, true);
    }
    json_array_foreach(listed, i, value) {
        key = json_string_value(value);
        if (key && strlen(key) == json_string_length(value) && !json_object_get(described, key) &&
            !is_required(keywords, key))
            add_property(w, list, &n, rest, key, NULL, false);
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

/* Writes one alternative of the rule NAME-ID-x: a property whose name is in the set. */
static void put_extra_of(schema_writer *w, mr_text_buf *rule, text_set names, json_t *schema, bool any_form) {
    if (names == TEXT_NONE || json_is_false(schema))
        return;
    schema_put(w, rule, "| \"\\\"\" ");
    if (any_form)
        schema_put(w, rule, "%s-char* ", w->name);
    else if (!schema_write_set(w, rule, names, TEXT_JSON, "") && schema_can_go_on(w)) {
        if (schema_widen(w, "additionalProperties", "the names beside it need too large an automaton"))
            schema_put(w, rule, "%s-char* ", w->name);
    }
    schema_put(w, rule, "\"\\\":\" %s-sp ", w->name);
    put_value(w, rule, schema, "additionalProperties", -1);
}

/* Writes the rule NAME-ID-x: a property whose name is neither described nor required. For each choice of patterns there
 * are the names that match all of them and no other. */
static void put_extra(schema_writer *w, const json_t *keywords, const object_rest *rest) {
    json_t *described = json_object_get(keywords, "properties"), *required = json_object_get(keywords, "required");
    text_sets *p = &w->texts;
    mr_str *names = mr_alloc_array(json_object_size(described) + json_array_size(required), sizeof *names);
    mr_text_buf rule = {0};
    size_t n = 0, k;
    const char *key;
    json_t *value;
    if (!names) {
        schema_no_memory(w);
        return;
    }
    json_object_foreach(described, key, value) names[n++] = mr_str_from(key);
    json_array_foreach(required, k, value) names[n++] = mr_str_from(json_string_value(value));
    text_set listed = schema_can_go_on(w) ? text_one_of(p, names, n) : TEXT_NONE;
    for (size_t choice = 0; choice < (size_t)1 << rest->n_patterns && w->status == MR_OK; choice++) {
        text_set set = text_both(p, rest->names, text_not(p, listed));
        json_t *schema = choice ? NULL : json_incref(rest->others);
        for (size_t i = 0; i < rest->n_patterns; i++) {
            bool is_chosen = choice >> i & 1;
            set = text_both(p, set, is_chosen ? rest->patterns[i] : text_not(p, rest->patterns[i]));
            json_t *both = is_chosen ? schema_both(schema, rest->of_pattern[i]) : json_incref(schema);
            json_decref(schema);
            schema = both;
        }
        if (choice || rest->open)
            put_extra_of(w, &rule, set, schema, n == 0 && rest->n_patterns == 0 && rest->names == TEXT_ALL);
        json_decref(schema);
    }
    schema_put(w, w->out, "%s-%zu-x ::= [] ", w->name, w->now);
    schema_put_bytes(w, w->out, (mr_str){rule.data, rule.len});
    schema_put(w, w->out, "\n");
    mr_text_buf_deinit(&rule);
    mr_free(names);
}

/* Writes the rules NAME-ID-tI: the rest of an object that has a property already, where only the properties from I
 * on may follow. extra: additional properties are allowed. min, max: the fewest and the most properties of an object
 * that has no described property; max -1: unbounded. */
static void put_tails(schema_writer *w, const property *list, size_t n, bool extra, long min, long max) {
    for (size_t i = 1; i < n; i++) {
        schema_put(w, w->out, "%s-%zu-t%zu ::= \",\" %s-ws %s-%zu-m%zu %s-%zu-t%zu", w->name, w->now, i, w->name,
                   w->name, w->now, i, w->name, w->now, i + 1);
        if (!list[i].required)
            schema_put(w, w->out, " | %s-%zu-t%zu", w->name, w->now, i + 1);
        schema_put(w, w->out, "\n");
    }
    schema_put(w, w->out, "%s-%zu-t%zu ::= ", w->name, w->now, n ? n : 1);
    long least = n == 0 && min > 1 ? min - 1 : 0;
    if (extra && n == 0 && max > least)
        schema_put(w, w->out, "(\",\" %s-ws %s-%zu-x){%ld,%ld}\n", w->name, w->name, w->now, least, max - 1);
    else if (extra)
        schema_put(w, w->out, "(\",\" %s-ws %s-%zu-x){%ld,}\n", w->name, w->name, w->now, least);
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
    if (v && json_number_value(v) > MR_GRAMMAR_MAX_REPEAT) {
        schema_widen(w, key, "more than 32768");
        v = NULL;
    }
    *out = v ? (long)json_number_value(v) : -1;
    return v != NULL;
}

/* Reads propertyNames. out_listed: the names, a new reference, if it lists them; else NULL. */
static text_set read_names(schema_writer *w, json_t *schema, json_t **out_listed) {
    static const char *const known[] = {"type", "enum", "pattern", "format", "minLength", "maxLength", "not"};
    schema_all all = {0};
    text_set set = TEXT_ALL;
    const char *key;
    json_t *value;
    if (!schema || schema_flatten(w, schema, &all) != MR_OK) {
        schema_all_deinit(&all);
        return TEXT_ALL;
    }
    bool ok = json_array_size(all.choices) == 0;
    json_object_foreach(all.keywords, key, value) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known = is_known || strcmp(key, known[i]) == 0;
        ok = ok && is_known;
    }
    if (!ok) {
        schema_widen(w, "propertyNames", "it has other keywords than those of strings");
    } else if (all.never || !schema_has_type(json_object_get(all.keywords, "type"), "string")) {
        set = TEXT_NONE;
    } else {
        set = schema_string_set(w, all.keywords).all;
        *out_listed = json_incref(json_object_get(all.keywords, "enum"));
        if (*out_listed && w->status == MR_OK)
            set = text_both(&w->texts, set, schema_constants(w, *out_listed));
    }
    schema_all_deinit(&all);
    return set;
}

/* Reads patternProperties. With a pattern that cannot be read, any name may have any value. */
static void read_patterns(schema_writer *w, const json_t *keywords, object_rest *rest) {
    const char *key, *why;
    json_t *value;
    json_object_foreach(json_object_get(keywords, "patternProperties"), key, value) {
        size_t n = rest->n_patterns;
        if (!schema_can_go_on(w))
            return;
        why = "more than 4 patterns";
        if (n < SCHEMA_MAX_PATTERNS &&
            schema_read_regex(&w->texts, mr_str_from(key), false, &rest->patterns[n], &why)) {
            rest->of_pattern[n] = value;
            rest->n_patterns++;
        } else if (schema_can_go_on(w) && schema_widen(w, "patternProperties", why)) {
            *rest = (object_rest){.names = rest->names, .open = true};
            return;
        }
    }
}

void schema_write_object(schema_writer *w, const json_t *keywords) {
    size_t n = 0;
    json_t *others = json_object_get(keywords, "additionalProperties"), *listed = NULL;
    json_t *unevaluated = json_object_get(keywords, "unevaluatedProperties");
    bool described = json_object_get(keywords, "properties") || json_object_get(keywords, "patternProperties");
    bool no_names = !json_object_get(keywords, "propertyNames");
    bool has_unread = schema_has_unread(keywords);
    others = others ? others : has_unread ? json_true() : unevaluated;
    object_rest rest = {.others = json_is_true(others) ? NULL : others,
                        .open = others ? !json_is_false(others) : !described};
    if (!described && !json_object_get(keywords, "required") && rest.open && !rest.others && no_names &&
        !json_object_get(keywords, "minProperties") && !json_object_get(keywords, "maxProperties")) {
        schema_put(w, &w->body, "%s-object ", w->name);
        return;
    }
    rest.names = read_names(w, json_object_get(keywords, "propertyNames"), &listed);
    read_patterns(w, keywords, &rest);
    if (json_array_size(listed) > SCHEMA_MAX_OPTIONAL) {
        json_decref(listed); /* too many for properties of their own: names as by a pattern */
        listed = NULL;
    }
    property *list = list_properties(w, keywords, &rest, listed, &n);
    bool extra = (rest.open || rest.n_patterns) && !listed;
    long min, max;
    get_count(w, keywords, "minProperties", &min);
    bool bounded = get_count(w, keywords, "maxProperties", &max);
    if (n > 0 && min > 1 && min > (long)json_array_size(json_object_get(keywords, "required")))
        schema_widen(w, "minProperties", "more than 1, and more than are required");
    if (bounded && n > 0 && (extra || max < (long)n))
        schema_widen(w, "maxProperties", "fewer than there may be");
    extra = extra && max != 0;
    if ((!extra && min > (long)n) || (bounded && min > max)) {
        schema_put(w, &w->body, "[] ");
    } else if (w->status == MR_OK) {
        put_members(w, list, n);
        put_tails(w, list, n, extra, min, max);
        if (extra)
            put_extra(w, keywords, &rest);
        put_object(w, list, n, extra, min >= 1);
    }
    for (size_t i = 0; list && i < n; i++)
        json_decref(list[i].schema);
    json_decref(listed);
    mr_free(list);
}

/* --- Arrays ------------------------------------------------------------------------------------------------------ */

/* The values that the items of an array can have, a new reference; NULL: too many, or not known. */
static json_t *values_of_items(schema_writer *w, json_t *items) {
    schema_all all = {0};
    json_t *values = NULL, *v;
    size_t i;
    if (!items || schema_flatten(w, items, &all) != MR_OK || json_array_size(all.choices)) {
        schema_all_deinit(&all);
        return NULL;
    }
    json_t *types = json_object_get(all.keywords, "type"), *listed = json_object_get(all.keywords, "enum");
    bool few = types != NULL;
    json_array_foreach(types, i, v) few =
        few && (strcmp(json_string_value(v), "boolean") == 0 || strcmp(json_string_value(v), "null") == 0);
    if (listed || few)
        values = json_array();
    json_array_foreach(listed, i, v) {
        if (schema_value_fits(w, all.keywords, v))
            json_array_append(values, v);
    }
    if (few && !listed && schema_has_type(types, "boolean")) {
        json_array_append_new(values, json_true());
        json_array_append_new(values, json_false());
    }
    if (few && !listed && schema_has_type(types, "null"))
        json_array_append_new(values, json_null());
    schema_all_deinit(&all);
    return values;
}

/* The array of min to max different values: a rule NAME-ID-uK for each set of values that are there already. Returns
 * false, and writes nothing, if there are too many sets. */
static bool put_unique(schema_writer *w, const json_t *values, long min, long max) {
    uint64_t sets[MAX_UNIQUE] = {0};
    size_t n = json_array_size(values), n_sets = 1;
    if (n > 63)
        return false;
    for (size_t k = 0; k < n_sets; k++) {
        for (size_t i = 0; i < n && __builtin_popcountll(sets[k]) < max - 1; i++) {
            uint64_t more = sets[k] | UINT64_C(1) << i;
            size_t at = 0;
            while (at < n_sets && sets[at] != more)
                at++;
            if (at == MAX_UNIQUE || !schema_spend(w, at, 1))
                return false;
            sets[at] = more;
            n_sets += at == n_sets;
        }
    }
    for (size_t k = 0; k < n_sets && max > 0; k++) {
        long n_there = __builtin_popcountll(sets[k]);
        schema_put(w, w->out, "%s-%zu-u%zu ::= [] ", w->name, w->now, k);
        for (size_t i = 0; i < n; i++) {
            size_t at = 0;
            if (sets[k] >> i & 1)
                continue;
            schema_put(w, w->out, n_there ? "| \",\" %s-ws " : "| ", w->name);
            schema_put_value(w, w->out, json_array_get(values, i));
            while (n_there + 1 < max && sets[at] != (sets[k] | UINT64_C(1) << i))
                at++;
            if (n_there + 1 < max)
                schema_put(w, w->out, " %s-%zu-u%zu ", w->name, w->now, at);
            else
                schema_put(w, w->out, " %s-ws ", w->name);
        }
        if (n_there >= min)
            schema_put(w, w->out, n_there ? "| %s-ws" : "| \"\"", w->name);
        schema_put(w, w->out, "\n");
    }
    if (max > 0)
        schema_put(w, &w->body, "\"[\" %s-ws %s-%zu-u0 \"]\" ", w->name, w->name, w->now);
    else
        schema_put(w, &w->body, min > 0 ? "[] " : "\"[\" %s-ws \"]\" ", w->name);
    return true;
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
    if (!rest && !schema_has_unread(keywords))
        rest = json_object_get(keywords, "unevaluatedItems");
    long min, max, n = (long)json_array_size(prefix);
    get_count(w, keywords, "minItems", &min);
    bool bounded = get_count(w, keywords, "maxItems", &max);
    if (n > SCHEMA_MAX_ITEMS)
        schema_refuse(w, "prefixItems", "more than 256 schemas");
    if (json_is_true(json_object_get(keywords, "uniqueItems")) && !(bounded && max < 2)) {
        json_t *values = n ? NULL : values_of_items(w, rest);
        if (values && (!bounded || max > (long)json_array_size(values))) {
            max = (long)json_array_size(values);
            bounded = true;
        }
        bool never = values && min > max, done = values && !never && put_unique(w, values, min, max);
        json_decref(values);
        if (done || (!never && !schema_widen(w, "uniqueItems", "the items can have too many values")))
            return;
    }
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
