/* coordinator/serving/json/json_number.c - long numbers: what they are to jansson, and how they are written. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/json/json_internal.h"

const char *mr_json_digits(const json_t *value) {
    return json_object_size(value) == 1 ? json_string_value(json_object_get(value, JSON_LONG_NAME)) : NULL;
}

bool mr_json_number(const json_t *value, double *out) {
    const char *digits = mr_json_digits(value);
    if (!digits && !json_is_number(value))
        return false;
    *out = digits ? strtod(digits, NULL) : json_number_value(value);
    return true;
}

/* A member of this name cannot be part of a string: quotes have a backslash there. */
char *mr_json_dump(const json_t *value, size_t flags) {
    static const char name[] = "\"" JSON_LONG_NAME "\":";
    char *text = json_dumps(value, flags | JSON_ENCODE_ANY), *from = text, *to = text;
    for (char *at; text && (at = strstr(from, name)) != NULL; from = strchr(from, '}') + 1) {
        size_t n = (size_t)(at - from);
        memmove(to, from, n);
        for (to += n; *--to != '{';)
            ;
        from = strchr(at + sizeof name - 1, '"') + 1;
        n = strcspn(from, "\"");
        memmove(to, from, n);
        to += n;
    }
    if (text)
        memmove(to, from, strlen(from) + 1);
    return text;
}
