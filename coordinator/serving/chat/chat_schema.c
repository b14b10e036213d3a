/* coordinator/serving/chat/chat_schema.c - finds the function of a tool, and the types that a JSON schema allows. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_schema.h"

#include <string.h>

#include "coordinator/serving/schema/schema.h"

const json_t *chat_tool_function(const json_t *tool) {
    const json_t *function = json_object_get(tool, "function");
    return function ? function : tool;
}

static unsigned type_named(const char *name) {
    static const struct {
        const char *name;
        unsigned bit;
    } NAMES[] = {{"string", CHAT_TYPE_STRING}, {"number", CHAT_TYPE_NUMBER}, {"integer", CHAT_TYPE_NUMBER},
                 {"boolean", CHAT_TYPE_BOOL},  {"null", CHAT_TYPE_NULL},     {"object", CHAT_TYPE_OBJECT},
                 {"array", CHAT_TYPE_ARRAY}};
    for (size_t i = 0; name && i < sizeof NAMES / sizeof NAMES[0]; i++)
        if (strcmp(name, NAMES[i].name) == 0)
            return NAMES[i].bit;
    return CHAT_TYPE_ANY;
}

unsigned chat_value_type(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_STRING:
        return CHAT_TYPE_STRING;
    case JSON_INTEGER:
    case JSON_REAL:
        return CHAT_TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return CHAT_TYPE_BOOL;
    case JSON_NULL:
        return CHAT_TYPE_NULL;
    case JSON_OBJECT:
        return CHAT_TYPE_OBJECT;
    case JSON_ARRAY:
        return CHAT_TYPE_ARRAY;
    }
    return CHAT_TYPE_ANY;
}

/* The types by `type` (a name or a list), or by the values of enum or const, and null by `nullable`; 0: the schema has
 * none of these. */
static unsigned types_here(const json_t *schema) {
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    const json_t *only = json_object_get(schema, "const");
    unsigned bits = 0;
    size_t i;
    json_t *v;
    if (json_is_null(type))
        type = NULL;
    json_array_foreach(type, i, v) bits |= type_named(json_string_value(v));
    if (json_is_string(type))
        bits = type_named(json_string_value(type));
    if (!type)
        json_array_foreach(values, i, v) bits |= chat_value_type(v);
    if (!type && only)
        bits = chat_value_type(only);
    return bits && json_is_true(json_object_get(schema, "nullable")) ? bits | CHAT_TYPE_NULL : bits;
}

unsigned chat_schema_types(const json_t *schema) {
    const json_t *any = json_object_get(schema, "anyOf"), *branch;
    unsigned bits = types_here(schema);
    size_t i;
    if (!json_is_array(any))
        any = json_object_get(schema, "oneOf");
    json_array_foreach(any, i, branch) {
        unsigned of_branch = types_here(branch);
        bits |= of_branch ? of_branch : CHAT_TYPE_ANY;
    }
    return bits ? bits : CHAT_TYPE_ANY;
}

json_t *chat_tools_merged(const json_t *tools) {
    static const char *const BEHIND[] = {"$ref", "allOf", "anyOf", "oneOf"};
    json_t *copy = json_deep_copy(tools), *tool;
    size_t i;
    json_array_foreach(copy, i, tool) {
        json_t *function = (json_t *)chat_tool_function(tool), *merged = NULL;
        const json_t *parameters = json_object_get(function, "parameters");
        bool behind = false;
        for (size_t k = 0; k < sizeof BEHIND / sizeof BEHIND[0]; k++)
            behind = behind || json_object_get(parameters, BEHIND[k]);
        /* A schema that cannot be merged has no grammar either: its arguments are read as they look. */
        if (behind && mr_schema_merged(parameters, false, &merged, NULL) == MR_OK)
            json_object_set_new(function, "parameters", merged);
    }
    return copy;
}
