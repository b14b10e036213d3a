/* coordinator/serving/api/api_fields.c - reads one field after another of a table, and checks type and range. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/api/api_fields.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/serving/json/json.h"
#include "coordinator/serving/wire/api_json.h"

static bool wrong_type(const char *name, const char *expected, const json_t *value, mr_api_error *e) {
    return mr_api_error_set(e, 400, "invalid_type", name, "%s is %s, where %s is expected", name,
                            mr_api_json_kind(value), expected);
}

bool api_field_number(const json_t *value, const char *name, double low, double high, bool whole, double *out,
                      mr_api_error *e) {
    double x = 0;
    if (!mr_json_number(value, &x))
        return wrong_type(name, whole ? "an integer" : "a number", value, e);
    if (whole && x != floor(x))
        return mr_api_error_set(e, 400, "invalid_type", name, "%s is %g, where an integer is expected", name, x);
    if (!(x >= low && x <= high))
        return mr_api_error_set(e, 400, "invalid_value", name, "%s is %.10g, outside %.10g to %.10g", name, x, low,
                                high);
    *out = x;
    return true;
}

static bool read_text(const api_field *f, const char *name, const json_t *value, mr_str *out, mr_api_error *e) {
    if (!json_is_string(value))
        return wrong_type(name, "a string", value, e);
    size_t n = json_string_length(value);
    if ((double)n < f->low || (double)n > f->high)
        return mr_api_error_set(e, 400, "invalid_value", name, "%s has %zu bytes, where %.0f to %.0f are allowed", name,
                                n, f->low, f->high);
    *out = (mr_str){json_string_value(value), n};
    return true;
}

static bool read_int64(const char *name, const json_t *value, int64_t *out, mr_api_error *e) {
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    double x = 0;
    if (!api_field_number(value, name, -9007199254740992.0, 9007199254740992.0, true, &x, e))
        return false;
    *out = (int64_t)x;
    return true;
}

static bool read_array(const api_field *f, const char *name, const json_t *value, const json_t **out, mr_api_error *e) {
    if (!json_is_array(value))
        return wrong_type(name, "an array", value, e);
    if ((double)json_array_size(value) > f->high)
        return mr_api_error_set(e, 400, "array_above_max_length", name, "%s has %zu elements, where %.0f are allowed",
                                name, json_array_size(value), f->high);
    *out = value;
    return true;
}

/* Whether the value is a word, or a list of one word, that asks for what happens without the field. */
static bool is_default_word(const char *name, const json_t *value) {
    static const char *const words[][2] = {{"function_call", "none"},
                                           {"function_call", "auto"}, /* there are no functions */
                                           {"rank_fields", "text"},
                                           {"verbosity", "medium"}};
    const char *word = json_string_value(json_array_size(value) == 1 ? json_array_get(value, 0) : value);
    for (size_t i = 0; i < sizeof words / sizeof words[0] && word; i++)
        if (strcmp(name, words[i][0]) == 0 && strcmp(word, words[i][1]) == 0)
            return true;
    return false;
}

static bool is_off(const api_field *f, const json_t *value) {
    double x = json_is_true(value) ? 1 : json_number_value(value);
    if (mr_json_digits(value))
        return false;
    if (f->low > f->high)
        return json_is_false(value);
    if (json_is_number(value) || json_is_boolean(value))
        return x >= f->low && x <= f->high;
    return json_string_length(value) + json_array_size(value) + json_object_size(value) == 0 ||
           is_default_word(f->name, value);
}

static bool read_field(const api_field *f, const char *name, const json_t *value, char *at, mr_api_error *e) {
    double x = 0;
    switch (f->type) {
    case API_FIELD_BOOL:
        if (!json_is_boolean(value))
            return wrong_type(name, "a boolean", value, e);
        *(bool *)at = json_is_true(value);
        return true;
    case API_FIELD_INT32:
        if (!api_field_number(value, name, f->low, f->high, true, &x, e))
            return false;
        *(int32_t *)at = (int32_t)x;
        return true;
    case API_FIELD_INT64:
        return read_int64(name, value, (int64_t *)at, e);
    case API_FIELD_FLOAT:
        if (!api_field_number(value, name, f->low, f->high, false, &x, e))
            return false;
        *(float *)at = (float)x;
        return true;
    case API_FIELD_TEXT:
        return read_text(f, name, value, (mr_str *)at, e);
    case API_FIELD_ARRAY:
        return read_array(f, name, value, (const json_t **)at, e);
    case API_FIELD_OBJECT:
        if (!json_is_object(value) || mr_json_digits(value))
            return wrong_type(name, "an object", value, e);
        *(const json_t **)at = value;
        return true;
    case API_FIELD_ANY:
        *(const json_t **)at = value;
        return true;
    case API_FIELD_REFUSED:
        if (!is_off(f, value))
            return mr_api_error_set(e, 400, "unsupported_parameter", name, "%s is not supported", name);
        return true;
    case API_FIELD_IGNORED:
        break;
    }
    return true;
}

bool api_fields_read(const api_field *fields, size_t n, const char *prefix, const json_t *object, void *out,
                     mr_api_error *e) {
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(object, fields[i].name);
        char name[96];
        snprintf(name, sizeof name, "%s%s", prefix ? prefix : "", fields[i].name);
        if (value && !json_is_null(value) && !read_field(&fields[i], name, value, (char *)out + fields[i].offset, e))
            return false;
    }
    return true;
}
