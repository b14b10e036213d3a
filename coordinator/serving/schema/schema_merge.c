/* Merges a subschema and the schemas of its $ref and allOf into one object of keywords. Keywords have their meaning in
 * JSON Schema 2020-12. The older forms of items and $defs are read too. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "coordinator/serving/schema/schema_internal.h"
#include "engine/text/utf8.h"

static int hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Reads one part of a JSON pointer in a URI fragment (RFC 6901): decodes %XX first, then ~1 and ~0. Returns the end of
 * the part, NULL if the part is malformed or too long. */
static const char *pointer_part(const char *at, char out[256], size_t *out_n) {
    size_t n = 0;
    for (; *at && *at != '/'; at++) {
        char c = *at;
        if (c == '%') {
            if (hex(at[1]) < 0 || hex(at[2]) < 0)
                return NULL;
            c = (char)(hex(at[1]) << 4 | hex(at[2]));
            at += 2;
        }
        if (n && out[n - 1] == '~' && (c == '0' || c == '1'))
            out[n - 1] = c == '0' ? '~' : '/';
        else if (n == 255 || c == 0)
            return NULL;
        else
            out[n++] = c;
    }
    out[n] = 0;
    *out_n = n;
    return at;
}

static json_t *resolve(schema_writer *w, const char *ref) {
    json_t *v = w->root;
    char part[256], shown[128];
    mr_utf8_printable(mr_str_from(ref), shown, sizeof shown);
    if (ref[0] != '#' || (ref[1] && ref[1] != '/')) {
        schema_widen(w, "$ref", "only references into this schema by a path (#/...) are supported");
        return NULL;
    }
    for (const char *at = ref + 1; at && *at == '/' && v;) {
        size_t n;
        at = pointer_part(at + 1, part, &n);
        if (!at)
            v = NULL;
        else if (json_is_array(v))
            v = n && strspn(part, "0123456789") == n && n < 9 ? json_array_get(v, (size_t)strtoul(part, NULL, 10))
                                                              : NULL;
        else
            v = json_object_get(v, part);
    }
    if (!v || !schema_is(v)) {
        schema_fail(w, MR_E_FORMAT, "schema: keyword \"$ref\": there is no schema at \"%s\"", shown);
        return NULL;
    }
    return v;
}

json_t *schema_both(json_t *a, json_t *b) {
    if (!a || a == b || json_is_true(a))
        return b ? json_incref(b) : json_true();
    if (!b || json_is_true(b))
        return json_incref(a);
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    return json_pack("{s:[O,O]}", "allOf", a, b);
}

static void set(schema_writer *w, json_t *object, const char *key, json_t *value) {
    if (!value || json_object_set_new(object, key, value))
        schema_no_memory(w);
}

static json_t *member(json_t *object, const char *key) {
    json_t *v = json_object_get(object, key);
    return json_is_null(v) ? json_true() : v;
}

/* Merges properties and additionalProperties together, because a property that one side does not name is an additional
 * property of that side. If one side has additionalProperties, the result has it too, even the value true, because true
 * allows additional properties beside described ones. key: properties, or patternProperties with rest_a and rest_b
 * NULL. */
static void merge_members(schema_writer *w, json_t *all, json_t *part, const char *name, json_t *rest_a,
                          json_t *rest_b) {
    json_t *a = json_object_get(all, name), *b = json_object_get(part, name), *value;
    const char *key;
    if ((!b && (!a || !rest_b)) || !schema_spend(w, json_object_size(a) + json_object_size(b), 1))
        return;
    json_t *merged = json_object();
    json_object_foreach(a, key, value) {
        json_t *other = member(b, key);
        set(w, merged, key, schema_both(value, other ? other : rest_b));
    }
    json_object_foreach(b, key, value) {
        if (!json_object_get(a, key))
            set(w, merged, key, schema_both(rest_a, member(b, key)));
    }
    set(w, all, name, merged);
}

static void merge_properties(schema_writer *w, json_t *all, json_t *part) {
    json_t *rest_a = json_object_get(all, "additionalProperties");
    json_t *rest_b = json_object_get(part, "additionalProperties");
    merge_members(w, all, part, "properties", rest_a, rest_b);
    merge_members(w, all, part, "patternProperties", NULL, NULL);
    if (rest_b)
        set(w, all, "additionalProperties", schema_both(rest_a, rest_b));
}

/* The schema of item i. For i at or behind the end of the list of schemas: the schema of all further items. NULL: any
 * item is valid. */
static json_t *item_schema(json_t *keywords_of, size_t i) {
    json_t *items = json_object_get(keywords_of, "items"), *prefix = json_object_get(keywords_of, "prefixItems");
    if (json_is_array(items) && !prefix)
        return i < json_array_size(items) ? json_array_get(items, i) : json_object_get(keywords_of, "additionalItems");
    return i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
}

static size_t n_prefix(json_t *keywords_of) {
    json_t *prefix = json_object_get(keywords_of, "prefixItems");
    return json_array_size(prefix ? prefix : json_object_get(keywords_of, "items"));
}

/* Merges the schemas of items. The result has prefixItems and items only, not the older forms. */
static void merge_items(schema_writer *w, json_t *all, json_t *part) {
    size_t n = n_prefix(all) > n_prefix(part) ? n_prefix(all) : n_prefix(part);
    if (!json_object_get(part, "items") && !json_object_get(part, "prefixItems"))
        return;
    json_t *prefix = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *item = schema_both(item_schema(all, i), item_schema(part, i));
        if (!item || json_array_append_new(prefix, item))
            schema_no_memory(w);
    }
    json_t *rest = schema_both(item_schema(all, n), item_schema(part, n));
    if (n)
        set(w, all, "prefixItems", json_incref(prefix));
    json_decref(prefix);
    set(w, all, "items", rest);
}

static bool list_has(const json_t *list, const json_t *value) {
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        if (json_equal(v, (json_t *)value))
            return true;
    }
    return false;
}

/* The values that both lists have, without duplicates. a NULL: the values of b. */
static json_t *intersect(schema_writer *w, const json_t *a, json_t *b) {
    json_t *out = json_array(), *v;
    size_t i;
    if (!schema_spend(w, json_array_size(a) + json_array_size(b), json_array_size(b)))
        return out;
    json_array_foreach(b, i, v) {
        if ((!a || list_has(a, v)) && !list_has(out, v) && json_array_append(out, v)) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* The types that both lists have. The type number includes integer. */
static json_t *intersect_types(const json_t *a, json_t *b) {
    json_t *names = json_is_array(b) ? json_incref(b) : json_pack("[O]", b), *out = json_array();
    for (size_t i = 0; i < SCHEMA_N_TYPES; i++) {
        json_t *t = json_string(schema_types[i]), *number = json_string("number");
        bool whole = strcmp(schema_types[i], "integer") == 0;
        bool in_a = !a || list_has(a, t) || (whole && list_has(a, number));
        bool in_b = list_has(names, t) || (whole && list_has(names, number));
        if (in_a && in_b)
            json_array_append(out, t);
        json_decref(t);
        json_decref(number);
    }
    json_decref(names);
    return out;
}

/* Whether the type integer is there without the type number: no list of types says "number, but no integer". */
static bool list_has_integer(const json_t *b) {
    json_t *names = json_is_array(b) ? json_incref((json_t *)b) : json_pack("[O]", b);
    json_t *integer = json_string("integer"), *number = json_string("number");
    bool found = list_has(names, integer) && !list_has(names, number);
    json_decref(names);
    json_decref(integer);
    json_decref(number);
    return found;
}

/* The types of a that b has not. a NULL: all types. */
static json_t *types_but(const json_t *a, const json_t *b) {
    json_t *names = json_is_array(b) ? json_incref((json_t *)b) : json_pack("[O]", b), *out = json_array();
    for (size_t i = 0; i < SCHEMA_N_TYPES; i++) {
        json_t *t = json_string(schema_types[i]), *number = json_string("number");
        bool taken = list_has(names, t) || (strcmp(schema_types[i], "integer") == 0 && list_has(names, number));
        if ((!a || list_has(a, t)) && !taken)
            json_array_append(out, t);
        json_decref(t);
        json_decref(number);
    }
    json_decref(names);
    return out;
}

static void merge_limit(schema_writer *w, json_t *all, const char *key, json_t *value, bool highest) {
    json_t *old = json_object_get(all, key);
    double a = json_number_value(old), b = json_number_value(value);
    if (!old || (highest ? b > a : b < a))
        set(w, all, key, json_incref(value));
}

static void merge_required(schema_writer *w, json_t *all, json_t *names) {
    json_t *list = json_object_get(all, "required"), *name;
    size_t i;
    if (!list) {
        list = json_array();
        set(w, all, "required", list);
    }
    if (!schema_spend(w, json_array_size(list) + json_array_size(names), json_array_size(names)))
        return;
    json_array_foreach(names, i, name) {
        if (!json_is_string(name))
            schema_bad_type(w, "required", "a list of strings");
        else if (!list_has(list, name) && json_array_append(list, name))
            schema_no_memory(w);
    }
}

/* Adds what a keyword says to a list of all that it says in the merged schemas. */
static void merge_list(schema_writer *w, json_t *all, const char *key, json_t *value) {
    json_t *old = json_object_get(all, key), *list = json_is_array(old) ? old : json_array(), *one;
    size_t i;
    bool ok = list != NULL && (!old || old == list || json_array_append(list, old) == 0);
    json_t *more = json_is_array(value) ? json_incref(value) : json_pack("[O]", value);
    if (!schema_spend(w, json_array_size(list) + json_array_size(more), json_array_size(more)))
        ok = false;
    json_array_foreach(more, i, one) {
        if (ok && !list_has(list, one))
            ok = json_array_append(list, one) == 0;
    }
    json_decref(more);
    if (list != old && (!ok || json_object_set(all, key, list)))
        ok = false;
    if (list != old)
        json_decref(list);
    if (!ok)
        schema_no_memory(w);
}

/* The alternatives of oneOf. If "discriminator" names a property, each alternative requires that property, as in
 * OpenAPI. Returns a new reference. */
static json_t *alternatives(schema_writer *w, json_t *of, json_t *discriminator) {
    json_t *tag = json_object_get(discriminator, "propertyName"), *list = json_array(), *one;
    size_t i;
    if (!json_is_string(tag)) {
        json_decref(list);
        return json_incref(of);
    }
    json_array_foreach(of, i, one) {
        if (json_array_append_new(list, json_pack("{s:[O,{s:[O]}]}", "allOf", one, "required", tag)))
            schema_no_memory(w);
    }
    return list;
}

static void merge_keyword(schema_writer *w, schema_all *out, const char *key, json_t *value, json_t *discriminator) {
    json_t *all = out->keywords, *old = json_object_get(all, key);
    static const char *const together[] = {
        "properties", "patternProperties", "additionalProperties", "items", "prefixItems", "additionalItems", "$ref",
        "allOf",      "nullable"};
    static const char *const lists[] = {"pattern", "format", "multipleOf", "not"};
    static const char *const schemas[] = {"propertyNames", "unevaluatedProperties", "unevaluatedItems"};
    for (size_t i = 0; i < sizeof together / sizeof *together; i++)
        if (strcmp(key, together[i]) == 0)
            return;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (strcmp(key, lists[i]) == 0) {
            merge_list(w, all, key, value);
            return;
        }
    }
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        if (strcmp(key, schemas[i]) == 0) {
            set(w, all, key, schema_both(old, value));
            return;
        }
    }
    if (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0) {
        bool one = key[0] == 'o';
        json_t *choice = json_pack("{s:b,s:o}", "one", one, "of", alternatives(w, value, one ? discriminator : NULL));
        if (!choice || json_array_append_new(out->choices, choice))
            schema_no_memory(w);
    } else if (strcmp(key, "type") == 0) {
        set(w, all, key, intersect_types(old, value));
    } else if (strcmp(key, "enum") == 0) {
        set(w, all, key, intersect(w, old, value));
    } else if (strcmp(key, "const") == 0) {
        json_t *list = json_pack("[O]", value);
        set(w, all, "enum", list ? intersect(w, json_object_get(all, "enum"), list) : NULL);
        json_decref(list);
    } else if (strcmp(key, "required") == 0) {
        merge_required(w, all, value);
    } else if (strncmp(key, "min", 3) == 0 || strcmp(key, "exclusiveMinimum") == 0) {
        merge_limit(w, all, key, value, true);
    } else if (strncmp(key, "max", 3) == 0 || strcmp(key, "exclusiveMaximum") == 0) {
        merge_limit(w, all, key, value, false);
    } else if (!old || json_is_true(value)) { /* uniqueItems */
        set(w, all, key, json_incref(value));
    }
}

/* Draft 4 has {"minimum": 3, "exclusiveMinimum": true}. Replaces the two keywords by the later form. */
static void renew_bound(schema_writer *w, json_t *known, const char *inclusive, const char *exclusive) {
    json_t *is_exclusive = json_object_get(known, exclusive), *bound = json_object_get(known, inclusive);
    if (!json_is_boolean(is_exclusive))
        return;
    if (json_is_true(is_exclusive) && bound) {
        set(w, known, exclusive, json_incref(bound));
        json_object_del(known, inclusive);
    } else {
        json_object_del(known, exclusive);
    }
}

static void merge_part(schema_writer *w, schema_all *out, json_t *part) {
    const char *key;
    json_t *value;
    json_t *known = json_object(); /* the keywords of part without annotations */
    json_object_foreach(part, key, value) {
        if (schema_check_keyword(w, key, value) && json_object_set(known, key, value))
            schema_no_memory(w);
        if (schema_is_unread(key) && !json_is_null(value) && json_object_set_new(out->keywords, key, json_true()))
            schema_no_memory(w);
    }
    renew_bound(w, known, "minimum", "exclusiveMinimum");
    renew_bound(w, known, "maximum", "exclusiveMaximum");
    json_object_foreach(known, key, value) {
        if (w->status == MR_OK)
            merge_keyword(w, out, key, value, json_object_get(part, "discriminator"));
    }
    if (w->status == MR_OK) {
        merge_properties(w, out->keywords, known);
        merge_items(w, out->keywords, known);
    }
    json_decref(known);
}

/* Takes the schemas that allow all values or none out of "not", and those that only name types. The others stay. */
static void settle_not(schema_writer *w, schema_all *out) {
    json_t *list = json_object_get(out->keywords, "not"), *schema;
    json_t *left = json_array();
    size_t i;
    json_array_foreach(list, i, schema) {
        const char *key;
        json_t *value, *type = json_object_get(schema, "type");
        size_t n = 0;
        json_object_foreach(schema, key, value) n += schema_check_keyword(w, key, value);
        if (json_is_false(schema))
            continue;
        if (n == 0 || json_is_true(schema))
            out->never = true;
        else if (n == 1 && schema_are_types(type) && !list_has_integer(type))
            set(w, out->keywords, "type", types_but(json_object_get(out->keywords, "type"), type));
        else if (json_array_append(left, schema))
            schema_no_memory(w);
    }
    if (json_array_size(left))
        set(w, out->keywords, "not", left);
    else {
        json_object_del(out->keywords, "not");
        json_decref(left);
    }
}

static void push(schema_writer *w, json_t **parts, size_t *n, json_t *schema) {
    if (*n == SCHEMA_MAX_PARTS)
        schema_fail(w, MR_E_TOO_LONG, "schema: more than %d schemas apply to one value; it may refer to itself",
                    SCHEMA_MAX_PARTS);
    else if (schema)
        parts[(*n)++] = schema;
}

/* OpenAPI 3.0's nullable: the schema without it, or null. */
static void add_nullable(schema_writer *w, schema_all *out, json_t *part) {
    json_t *own = json_copy(part);
    if (own)
        json_object_del(own, "nullable");
    json_t *choice = json_pack("{s:b,s:[o,{s:s}]}", "one", 0, "of", own, "type", "null");
    if (!choice || json_array_append_new(out->choices, choice))
        schema_no_memory(w);
}

mr_status schema_flatten(schema_writer *w, json_t *schema, schema_all *out) {
    json_t *parts[SCHEMA_MAX_PARTS];
    size_t n = 0;
    *out = (schema_all){.keywords = json_object(), .choices = json_array()};
    if (!out->keywords || !out->choices)
        return schema_no_memory(w);
    push(w, parts, &n, schema);
    for (size_t i = 0; i < n && w->status == MR_OK; i++) {
        json_t *part = parts[i], *ref = json_object_get(part, "$ref"), *list = json_object_get(part, "allOf"), *one;
        size_t k;
        if (!schema_is(part))
            return schema_fail(w, MR_E_FORMAT, "schema: a schema is an object, true or false");
        out->never = out->never || json_is_false(part);
        if (!json_is_object(part))
            continue;
        if (json_is_true(json_object_get(part, "nullable"))) {
            add_nullable(w, out, part);
            continue;
        }
        merge_part(w, out, part);
        if (json_is_string(ref) && w->status == MR_OK)
            push(w, parts, &n, resolve(w, json_string_value(ref)));
        json_array_foreach(list, k, one) {
            if (w->status == MR_OK)
                push(w, parts, &n, one);
        }
    }
    if (w->status == MR_OK)
        settle_not(w, out);
    const json_t *left = json_object_get(out->keywords, "type");
    out->never = out->never || (left && json_array_size(left) == 0);
    return w->status;
}

void schema_all_deinit(schema_all *a) {
    json_decref(a->keywords);
    json_decref(a->choices);
    *a = (schema_all){0};
}

static bool disjoint_enums(schema_writer *w, const json_t *a, const json_t *b) {
    size_t i;
    json_t *v;
    if (!schema_spend(w, json_array_size(a), json_array_size(b)))
        return false;
    json_array_foreach(a, i, v) {
        size_t k;
        json_t *other;
        json_array_foreach(b, k, other) {
            bool numbers = json_is_number(v) && json_is_number(other); /* 1 and 1.0 are equal */
            if (json_equal(v, other) || json_is_object(v) || json_is_array(v) ||
                (numbers && json_number_value(v) == json_number_value(other)))
                return false;
        }
    }
    return a && b;
}

static bool disjoint_types(const json_t *a, const json_t *b) {
    json_t *shared = a && b ? intersect_types(a, (json_t *)b) : NULL;
    bool none = shared && json_array_size(shared) == 0;
    json_decref(shared);
    return none;
}

/* Whether no value of the enum has one of the types. */
static bool enum_outside(const json_t *values, const json_t *type_names) {
    static const char *const names[] = {
        [JSON_OBJECT] = "object", [JSON_ARRAY] = "array",  [JSON_STRING] = "string", [JSON_INTEGER] = "number",
        [JSON_REAL] = "number",   [JSON_TRUE] = "boolean", [JSON_FALSE] = "boolean", [JSON_NULL] = "null",
    };
    size_t i;
    json_t *v;
    json_array_foreach(values, i, v) {
        json_t *type = json_pack("[s]", names[json_typeof(v)]);
        bool outside = disjoint_types(type, type_names);
        json_decref(type);
        if (!outside)
            return false;
    }
    return values && type_names;
}

/* The constants that const or enum of the schema itself allow. Returns a new reference, or NULL if the schema has
 * neither. */
static json_t *constants_of(const json_t *schema) {
    json_t *value = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    return value ? json_pack("[O]", value) : list ? json_incref(list) : NULL;
}

bool schema_disjoint(schema_writer *w, const schema_all *a, const schema_all *b) {
    const json_t *x = a->keywords, *y = b->keywords;
    const json_t *enum_x = json_object_get(x, "enum"), *enum_y = json_object_get(y, "enum");
    const json_t *types_x = json_object_get(x, "type"), *types_y = json_object_get(y, "type");
    if (a->never || b->never || disjoint_types(types_x, types_y) || disjoint_enums(w, enum_x, enum_y) ||
        enum_outside(enum_x, types_y) || enum_outside(enum_y, types_x))
        return true;
    /* Two objects are disjoint if both require a property whose constants differ. */
    const json_t *only_x = json_array_get(types_x, 0), *only_y = json_array_get(types_y, 0);
    if (json_array_size(types_x) != 1 || json_array_size(types_y) != 1 ||
        strcmp(json_string_value(only_x), "object") != 0 || strcmp(json_string_value(only_y), "object") != 0)
        return false;
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(x, "required"), i, name) {
        if (!schema_spend(w, json_array_size(json_object_get(y, "required")), 1) ||
            !list_has(json_object_get(y, "required"), name))
            continue;
        const char *key = json_string_value(name);
        json_t *one = constants_of(json_object_get(json_object_get(x, "properties"), key));
        json_t *other = constants_of(json_object_get(json_object_get(y, "properties"), key));
        bool apart = disjoint_enums(w, one, other);
        json_decref(one);
        json_decref(other);
        if (apart)
            return true;
    }
    return false;
}
