/* coordinator/serving/api/api_thinking.c - reads the fields that turn the reasoning of a chat on or off. Clients of GLM
 * and DeepSeek send `thinking`, clients of OpenRouter `reasoning`. Templates have variables for it. */
// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>
#include <stdio.h>

#include "coordinator/serving/api/api_fields.h"
#include "coordinator/serving/api/api_request.h"
#include "coordinator/serving/wire/api_json.h"

/* The members of either field. */
typedef struct thinking_members {
    mr_str type, effort;
    const json_t *enabled, *clear_thinking;
} thinking_members;

static const api_field members[] = {
    {"type", API_FIELD_TEXT, offsetof(thinking_members, type), 0, 64},
    {"effort", API_FIELD_TEXT, offsetof(thinking_members, effort), 0, 64},
    {"enabled", API_FIELD_ANY, offsetof(thinking_members, enabled), 0, 0},
    {"clear_thinking", API_FIELD_ANY, offsetof(thinking_members, clear_thinking), 0, 0},
    {"budget_tokens", API_FIELD_REFUSED, 0, -1, -1},
    {"max_tokens", API_FIELD_REFUSED, 0, -1, -1},
    {"exclude", API_FIELD_REFUSED, 0, 0, 0},
};

/* A type of `thinking`: a word. */
static bool read_type(api_request *r, mr_str type, const char *name, mr_api_error *e) {
    static const struct {
        const char *word;
        api_switch means;
    } types[] = {{"enabled", API_ON}, {"disabled", API_OFF}, {"auto", API_UNSET}, {"adaptive", API_UNSET}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (mr_str_is(type, types[i].word)) {
            r->thinking = types[i].means;
            return true;
        }
    return type.len == 0 ||
           mr_api_error_set(e, 400, "invalid_value", name, "%s is none of enabled, disabled, auto, adaptive", name);
}

/* true, false, or 0. */
static bool read_switch(api_request *r, const json_t *value, const char *name, mr_api_error *e) {
    if (!value)
        return true;
    if (!json_is_boolean(value) && !(json_is_number(value) && json_number_value(value) == 0))
        return mr_api_error_set(e, 400, "invalid_type", name, "%s is %s, where a boolean is expected", name,
                                mr_api_json_kind(value));
    r->thinking = json_is_true(value) ? API_ON : API_OFF;
    return true;
}

static bool read_members(api_request *r, const json_t *value, const char *name, mr_api_error *e) {
    thinking_members m = {0};
    char prefix[32], type[32], enabled[32];
    snprintf(prefix, sizeof prefix, "%s.", name);
    snprintf(type, sizeof type, "%s.type", name);
    snprintf(enabled, sizeof enabled, "%s.enabled", name);
    if (!api_fields_read(members, sizeof members / sizeof members[0], prefix, value, &m, e) ||
        !read_type(r, m.type, type, e) || !read_switch(r, m.enabled, enabled, e))
        return false;
    r->clear_thinking = m.clear_thinking;
    if (!r->reasoning_effort.data)
        r->reasoning_effort = m.effort;
    return true;
}

static bool read_field(api_request *r, const json_t *value, const char *name, mr_api_error *e) {
    if (json_is_object(value))
        return read_members(r, value, name, e);
    if (json_is_string(value))
        return read_type(r, (mr_str){json_string_value(value), json_string_length(value)}, name, e);
    return (json_is_array(value) && json_array_size(value) == 0) || read_switch(r, value, name, e);
}

bool api_read_thinking(api_request *r, mr_api_error *e) {
    if (!read_field(r, r->reasoning_field, "reasoning", e) || !read_field(r, r->thinking_field, "thinking", e))
        return false;
    if (r->thinking == API_UNSET && mr_str_is(r->reasoning_effort, "none"))
        r->thinking = API_OFF;
    return true;
}
