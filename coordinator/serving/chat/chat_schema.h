/* coordinator/serving/chat/chat_schema.h - the types that the schema of a tool allows for an argument. The parser
 * needs them for forms that write values without quotes: such a value is text where the schema allows nothing else.
 * Internal to this folder.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_SCHEMA_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_SCHEMA_H

#include <jansson.h>

enum {
    CHAT_TYPE_STRING = 1,
    CHAT_TYPE_NUMBER = 2,
    CHAT_TYPE_BOOL = 4,
    CHAT_TYPE_NULL = 8,
    CHAT_TYPE_OBJECT = 16,
    CHAT_TYPE_ARRAY = 32,
    CHAT_TYPE_ANY = 63,
};

/* The function of a tool, which is {"type": "function", "function": {...}} or the function itself. */
const json_t *chat_tool_function(const json_t *tool);
unsigned chat_value_type(const json_t *value);
/* The types that type, enum, const, anyOf and oneOf of the schema allow. Other keywords may forbid some of these. */
unsigned chat_schema_types(const json_t *schema);
/* A copy of the tools whose parameters have properties behind $ref, allOf, anyOf and oneOf as their own. A new
 * reference; NULL without memory. */
json_t *chat_tools_merged(const json_t *tools);

#endif
