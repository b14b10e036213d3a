/* The keywords of JSON Schema: which limit values, and what their values look like. Keywords have their meaning in JSON
 * Schema 2020-12; the older forms of items, required and exclusive bounds are read too. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/serving/schema/schema_internal.h"

const char *const schema_types[SCHEMA_N_TYPES] = {"null", "boolean", "integer", "number", "string", "array", "object"};

typedef enum keyword_kind {
    KEY_NOTE,  /* an annotation: does not change which values are valid */
    KEY_LIMIT, /* limits values, which a grammar cannot do */
    KEY_STRING,
    KEY_STRINGS, /* a string; of merged schemas a list of strings, all of which apply */
    KEY_NUMBER,
    KEY_NUMBERS,
    KEY_BOUND, /* a number, or in draft 4 whether the bound beside it is exclusive */
    KEY_COUNT, /* an integer >= 0 */
    KEY_LIST,
    KEY_NAMES,   /* a list; in draft 3 true or false, an annotation here */
    KEY_SCHEMAS, /* a list of at least one schema */
    KEY_SCHEMA,
    KEY_SCHEMA_OR_LIST,
    KEY_OBJECT,
    KEY_TYPES,
    KEY_ANY,
    KEY_BOOLEAN,
} keyword_kind;

typedef struct keyword {
    const char *name;
    keyword_kind kind;
    const char *wanted; /* of the value; for a limit the reason why it is not honoured */
} keyword;

static const char unsupported[] = "not supported";

/* The keywords of JSON Schema up to draft 2020-12, and of OpenAPI 3.0. Any other is an annotation. */
static const keyword keywords[] = {
    {"title", KEY_NOTE, ""},
    {"description", KEY_NOTE, ""},
    {"default", KEY_NOTE, ""},
    {"example", KEY_NOTE, ""},
    {"examples", KEY_NOTE, ""},
    {"deprecated", KEY_NOTE, ""},
    {"readOnly", KEY_NOTE, ""},
    {"writeOnly", KEY_NOTE, ""},
    {"discriminator", KEY_NOTE, ""},
    {"externalDocs", KEY_NOTE, ""},
    {"xml", KEY_NOTE, ""},
    {"contentEncoding", KEY_NOTE, ""},
    {"contentMediaType", KEY_NOTE, ""},
    {"contentSchema", KEY_NOTE, ""},
    {"$schema", KEY_NOTE, ""},
    {"$vocabulary", KEY_NOTE, ""},
    {"$id", KEY_NOTE, ""},
    {"$anchor", KEY_NOTE, ""},
    {"$dynamicAnchor", KEY_NOTE, ""},
    {"$recursiveAnchor", KEY_NOTE, ""},
    {"$comment", KEY_NOTE, ""},
    {"$defs", KEY_NOTE, ""},
    {"definitions", KEY_NOTE, ""},
    {"strict", KEY_NOTE, ""},
    {"then", KEY_NOTE, ""}, /* means nothing without "if" */
    {"else", KEY_NOTE, ""},
    {"minContains", KEY_NOTE, ""}, /* mean nothing without "contains" */
    {"maxContains", KEY_NOTE, ""},
    {"if", KEY_LIMIT, unsupported},
    {"contains", KEY_LIMIT, unsupported},
    {"dependentRequired", KEY_LIMIT, unsupported},
    {"dependentSchemas", KEY_LIMIT, unsupported},
    {"dependencies", KEY_LIMIT, unsupported},
    {"$dynamicRef", KEY_LIMIT, unsupported},
    {"$recursiveRef", KEY_LIMIT, unsupported},
    {"$ref", KEY_STRING, "a string"},
    {"pattern", KEY_STRINGS, "a string"},
    {"format", KEY_STRINGS, "a string"},
    {"minimum", KEY_NUMBER, "a number"},
    {"maximum", KEY_NUMBER, "a number"},
    {"exclusiveMinimum", KEY_BOUND, "a number"},
    {"exclusiveMaximum", KEY_BOUND, "a number"},
    {"multipleOf", KEY_NUMBERS, "a number above 0"},
    {"minLength", KEY_COUNT, "a whole number"},
    {"maxLength", KEY_COUNT, "a whole number"},
    {"minItems", KEY_COUNT, "a whole number"},
    {"maxItems", KEY_COUNT, "a whole number"},
    {"minProperties", KEY_COUNT, "a whole number"},
    {"maxProperties", KEY_COUNT, "a whole number"},
    {"enum", KEY_LIST, "a list"},
    {"required", KEY_NAMES, "a list"},
    {"allOf", KEY_SCHEMAS, "a list of schemas"},
    {"anyOf", KEY_SCHEMAS, "a list of schemas"},
    {"oneOf", KEY_SCHEMAS, "a list of schemas"},
    {"not", KEY_SCHEMA_OR_LIST, "a schema"},
    {"prefixItems", KEY_SCHEMAS, "a list of schemas"},
    {"items", KEY_SCHEMA_OR_LIST, "a schema"},
    {"additionalItems", KEY_SCHEMA, "a schema"},
    {"unevaluatedItems", KEY_SCHEMA, "a schema"},
    {"additionalProperties", KEY_SCHEMA, "a schema"},
    {"unevaluatedProperties", KEY_SCHEMA, "a schema"},
    {"propertyNames", KEY_SCHEMA, "a schema"},
    {"properties", KEY_OBJECT, "an object of schemas"},
    {"patternProperties", KEY_OBJECT, "an object of schemas"},
    {"type", KEY_TYPES, "a type or a list of types"},
    {"const", KEY_ANY, ""},
    {"uniqueItems", KEY_BOOLEAN, "true or false"},
    {"nullable", KEY_BOOLEAN, "true or false"},
};

bool schema_is(const json_t *v) {
    return json_is_object(v) || json_is_boolean(v);
}

static bool are_schemas(const json_t *list) {
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        if (!schema_is(v))
            return false;
    }
    return json_array_size(list) > 0;
}

static bool is_type(const json_t *v) {
    bool found = false;
    for (size_t i = 0; i < SCHEMA_N_TYPES; i++)
        found = found || (json_is_string(v) && strcmp(json_string_value(v), schema_types[i]) == 0);
    return found;
}

bool schema_are_types(const json_t *v) {
    size_t i;
    json_t *t;
    json_array_foreach(v, i, t) {
        if (!is_type(t))
            return false;
    }
    return is_type(v) || json_array_size(v) > 0;
}

static bool are_named_schemas(json_t *v) {
    const char *key;
    json_t *schema;
    json_object_foreach(v, key, schema) {
        if (!schema_is(schema) && !json_is_null(schema))
            return false;
    }
    return json_is_object(v);
}

static bool is_count(const json_t *v) {
    double d = json_number_value(v);
    return json_is_number(v) && d >= 0 && d <= 9e15 && d == (double)(int64_t)d;
}

static bool are_strings(const json_t *list) {
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        if (!json_is_string(v))
            return false;
    }
    return json_is_array(list);
}

static bool are_multiples(const json_t *list) {
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        if (!(json_number_value(v) > 0))
            return false;
    }
    return json_is_array(list) || json_number_value(list) > 0;
}

static bool value_fits(keyword_kind kind, json_t *v) {
    switch (kind) {
    case KEY_STRING:
        return json_is_string(v);
    case KEY_STRINGS:
        return json_is_string(v) || are_strings(v);
    case KEY_NUMBER:
        return json_is_number(v);
    case KEY_NUMBERS:
        return are_multiples(v);
    case KEY_BOUND:
        return json_is_number(v) || json_is_boolean(v);
    case KEY_NAMES:
        return json_is_array(v) || json_is_boolean(v);
    case KEY_COUNT:
        return is_count(v);
    case KEY_LIST:
        return json_is_array(v);
    case KEY_SCHEMAS:
        return are_schemas(v);
    case KEY_SCHEMA:
        return schema_is(v);
    case KEY_SCHEMA_OR_LIST:
        return schema_is(v) || are_schemas(v);
    case KEY_OBJECT:
        return are_named_schemas(v);
    case KEY_TYPES:
        return schema_are_types(v);
    case KEY_BOOLEAN:
        return json_is_boolean(v);
    case KEY_NOTE:
    case KEY_LIMIT:
    case KEY_ANY:
        return true;
    }
    return false;
}

bool schema_check_keyword(schema_writer *w, const char *name, json_t *value) {
    const keyword *k = keywords, *end = keywords + sizeof keywords / sizeof *keywords;
    while (k < end && strcmp(k->name, name) != 0)
        k++;
    if (k == end && strncmp(name, "x-", 2) != 0)
        schema_note(w, name, "it is not known");
    if (k == end || k->kind == KEY_NOTE || (json_is_null(value) && k->kind != KEY_ANY) ||
        (k->kind == KEY_NAMES && json_is_boolean(value)))
        return false;
    if (k->kind == KEY_LIMIT)
        schema_widen(w, name, k->wanted);
    else if (!value_fits(k->kind, value))
        schema_bad_type(w, name, k->wanted);
    else
        return true;
    return false;
}

bool schema_is_unread(const char *name) {
    static const char *const UNREAD[] = {"if",           "contains",    "dependentSchemas",
                                         "dependencies", "$dynamicRef", "$recursiveRef"};
    bool found = false;
    for (size_t i = 0; i < sizeof UNREAD / sizeof *UNREAD; i++)
        found = found || strcmp(UNREAD[i], name) == 0;
    return found;
}

bool schema_has_unread(const json_t *all) {
    const char *name;
    json_t *value;
    bool found = false;
    json_object_foreach((json_t *)all, name, value) found = found || schema_is_unread(name);
    return found;
}
