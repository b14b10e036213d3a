/* coordinator/serving/chat/chat_arguments.c - the arguments of an earlier call as an object, whatever a client sends
 * back: a text, a text that max_tokens has cut, nothing at all. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/serving/chat/chat_messages.h"
#include "coordinator/serving/json/json.h"
#include "engine/text/buffers.h"

enum { MAX_DEPTH = 64 };

static mr_str trimmed(const json_t *string) {
    mr_str s = {json_string_value(string), json_string_length(string)};
    while (s.len && strchr(" \t\r\n", s.data[0]))
        s = (mr_str){s.data + 1, s.len - 1};
    while (s.len && strchr(" \t\r\n", s.data[s.len - 1]))
        s.len--;
    return s;
}

/* Where a text that was cut is in the nesting of JSON. */
typedef struct place {
    char closers[MAX_DEPTH]; /* what the open objects and lists end with, innermost last */
    int depth, depth_safe;
    size_t n_safe; /* bytes up to the last complete value; depth_safe is the depth there */
    bool in_string;
    size_t n_whole; /* in a string: bytes without a cut escape */
} place;

static void set_safe(place *p, size_t n) {
    p->n_safe = n;
    p->depth_safe = p->depth;
}

/* Reads one character outside of strings; false: the text cannot be completed. */
static bool step(place *p, char c, size_t at) {
    p->in_string = c == '"';
    if (c == '{' || c == '[') {
        if (p->depth == MAX_DEPTH)
            return false;
        p->closers[p->depth++] = c == '{' ? '}' : ']';
        set_safe(p, at + 1);
    } else if (c == '}' || c == ']') {
        if (p->depth == 0 || p->closers[--p->depth] != c)
            return false;
        set_safe(p, at + 1);
    } else if (c == ',') {
        set_safe(p, at);
    }
    return true;
}

static bool find_place(mr_str text, place *p) {
    for (size_t i = 0; i < text.len; i++) {
        if (!p->in_string) {
            if (!step(p, text.data[i], i))
                return false;
            p->n_whole = i + 1;
            continue;
        }
        size_t n = text.data[i] != '\\' ? 1 : i + 1 < text.len && text.data[i + 1] == 'u' ? 6 : 2;
        if (i + n > text.len)
            return true;
        p->in_string = text.data[i] != '"';
        i += n - 1;
        p->n_whole = i + 1;
    }
    return true;
}

/* The value of the first n bytes, completed by the closers. */
static json_t *complete(mr_str text, size_t n, bool quote, const place *p, int depth) {
    mr_text_buf b = {0};
    json_t *value = NULL;
    bool ok = mr_text_buf_append(&b, text.data, n) && (!quote || mr_text_buf_append(&b, "\"", 1));
    for (int i = depth; ok && i > 0; i--)
        ok = mr_text_buf_append(&b, &p->closers[i - 1], 1);
    if (ok)
        value = mr_json_read((mr_str){b.data, b.len}, 0, NULL);
    mr_text_buf_deinit(&b);
    return value;
}

/* What can be read of an object that was cut; NULL: nothing. */
static json_t *read_cut(mr_str text) {
    place p = {0};
    if (!text.len || text.data[0] != '{' || !find_place(text, &p) || !p.depth)
        return NULL;
    json_t *value = complete(text, p.n_whole, p.in_string, &p, p.depth);
    if (!value)
        value = complete(text, p.n_safe, false, &p, p.depth_safe);
    if (json_object_size(value) || text.len == 1)
        return value;
    json_decref(value);
    return NULL;
}

/* {"arguments": value}, for what is no object. */
static json_t *wrap(json_t *value) {
    return json_pack("{s:O}", "arguments", value);
}

static bool is_object(const json_t *value) {
    return json_is_object(value) && !mr_json_digits(value);
}

json_t *chat_arguments_read(json_t *given, bool *out_is_whole) {
    json_t *text = json_incref(given), *value = json_incref(given), *result;
    *out_is_whole = false;
    while (json_is_string(value) && trimmed(value).len) { /* a text may hold a text that holds the object */
        json_decref(text);
        text = value;
        value = mr_json_read(trimmed(text), 0, NULL);
        *out_is_whole = text == given && is_object(value);
        if (!value)
            value = read_cut(trimmed(text));
    }
    if (is_object(value))
        result = json_incref(value);
    else if (value ? json_is_null(value) || json_is_string(value) || (json_is_array(value) && !json_array_size(value))
                   : !text)
        result = json_object();
    else
        result = wrap(value ? value : text);
    json_decref(value);
    json_decref(text);
    return result;
}
