/* coordinator/serving/batch/batch_json.c - finds one member of a JSON object without parsing the rest of it. Every line
 * of a batch is read this way when the file is opened, which full parsing would make slow. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/batch/batch_input.h"

static size_t skip_space(mr_str s, size_t i) {
    while (i < s.len && (s.data[i] == ' ' || s.data[i] == '\t' || s.data[i] == '\r' || s.data[i] == '\n'))
        i++;
    return i;
}

/* The index behind the string that begins at i; s.len: the string does not end. */
static size_t skip_text(mr_str s, size_t i) {
    for (i++; i < s.len && s.data[i] != '"'; i++)
        i += s.data[i] == '\\';
    return i < s.len ? i + 1 : s.len;
}

/* The index behind the value that begins at i. */
static size_t skip_value(mr_str s, size_t i) {
    size_t depth = 0;
    while (i < s.len) {
        char c = s.data[i];
        if (c == '"') {
            i = skip_text(s, i);
            if (!depth)
                return i;
            continue;
        }
        if (!depth && (c == ',' || c == '}' || c == ']'))
            return i;
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        i++;
        if (!depth && (c == '}' || c == ']'))
            return i;
    }
    return i;
}

bool batch_json_member(mr_str s, const char *key, mr_str *out_value) {
    size_t n = strlen(key), i = skip_space(s, 0);
    if (i == s.len || s.data[i] != '{')
        return false;
    for (i = skip_space(s, i + 1); i < s.len && s.data[i] == '"';) {
        size_t name = i + 1, end = skip_text(s, i);
        i = skip_space(s, end);
        if (i == s.len || s.data[i] != ':')
            return false;
        size_t value = skip_space(s, i + 1);
        i = skip_value(s, value);
        if (end - name == n + 1 && memcmp(s.data + name, key, n) == 0) {
            while (i > value && skip_space((mr_str){s.data + i - 1, 1}, 0))
                i--; /* white space behind a number or word */
            *out_value = (mr_str){s.data + value, i - value};
            return i > value;
        }
        i = skip_space(s, i);
        if (i == s.len || s.data[i] != ',')
            return false;
        i = skip_space(s, i + 1);
    }
    return false;
}
