/* coordinator/serving/json/json_read.c - rewrites what jansson cannot take, which few texts hold, and has jansson read
 * the text. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/json/json_internal.h"
#include "engine/base/mem.h"
#include "engine/text/buffers.h"

typedef struct rewriter {
    mr_str in;
    size_t n_done; /* bytes of `in` that `out` has, as they were or rewritten */
    mr_text_buf out;
    bool rounds; /* MR_JSON_ROUNDED */
    bool failed; /* no memory */
} rewriter;

static void append(rewriter *r, const char *bytes, size_t n) {
    r->failed = r->failed || !mr_text_buf_append(&r->out, bytes, n);
}

/* Replaces n bytes of the input. */
static void replace(rewriter *r, size_t at, size_t n, mr_str with) {
    append(r, r->in.data + r->n_done, at - r->n_done);
    append(r, with.data, with.len);
    r->n_done = at + n;
}

static char char_at(const rewriter *r, size_t at) {
    return at < r->in.len ? r->in.data[at] : 0;
}

/* ---- strings ---- */

/* The code unit of an escape \uXXXX; -1: none stands there. */
static long unit_at(const rewriter *r, size_t at) {
    char digits[5] = {0};
    if (at + 6 > r->in.len || r->in.data[at] != '\\' || r->in.data[at + 1] != 'u')
        return -1;
    memcpy(digits, r->in.data + at + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? strtol(digits, NULL, 16) : -1;
}

/* Rewrites the escape at a backslash where jansson refuses it; returns the place behind the escape. */
static size_t rewrite_escape(rewriter *r, size_t at, bool is_name) {
    long unit = unit_at(r, at);
    if (unit < 0)
        return at + 2;
    bool high = unit >= 0xD800 && unit < 0xDC00;
    long low = high ? unit_at(r, at + 6) : -1;
    if (low >= 0xDC00 && low < 0xE000)
        return at + 12;
    if ((unit >= 0xD800 && unit < 0xE000) || (is_name && (unit == 0 || unit == 0xFDD0)))
        replace(r, at, 6, mr_str_from("\\ufffd"));
    return at + 6;
}

/* Rewrites the string that begins at a quote; returns the place behind the string. */
static size_t rewrite_string(rewriter *r, size_t at) {
    const size_t n_mark = sizeof JSON_LONG_NAME - 1;
    bool escapes = false;
    size_t end = at + 1;
    for (; end < r->in.len && r->in.data[end] != '"'; end++)
        if (r->in.data[end] == '\\') {
            escapes = true;
            end++;
        }
    end = end < r->in.len ? end : r->in.len;
    size_t behind = end + 1;
    while (char_at(r, behind) && strchr(" \t\r\n", char_at(r, behind)))
        behind++;
    bool is_name = char_at(r, behind) == ':';
    if (is_name && end - at > n_mark && memcmp(r->in.data + at + 1, JSON_LONG_NAME, n_mark) == 0)
        replace(r, at + 1, n_mark, mr_str_from("\\ufffd"));
    for (size_t i = at + 1; escapes && i < end;)
        i = r->in.data[i] == '\\' ? rewrite_escape(r, i, is_name) : i + 1;
    return end + 1;
}

/* ---- numbers ---- */

static size_t skip_digits(const rewriter *r, size_t at) {
    while (char_at(r, at) >= '0' && char_at(r, at) <= '9')
        at++;
    return at;
}

static bool is_too_large(const char *number) {
    return isinf(strtod(number, NULL));
}

/* number: with its sign. */
static bool is_beyond_64_bits(const char *number) {
    bool negative = *number == '-';
    const char *last = negative ? "9223372036854775808" : "9223372036854775807", *digits = number + negative;
    size_t n = strlen(digits), n_last = strlen(last);
    return n > n_last || (n == n_last && strcmp(digits, last) > 0);
}

/* Rewrites the number that begins here; returns the place behind the number. */
static size_t rewrite_number(rewriter *r, size_t at) {
    enum { SHORT = 18 }; /* digits that fit 64 bits */
    size_t first = at + (r->in.data[at] == '-'), end = skip_digits(r, first), n_whole = end - first;
    bool has_exponent = false;
    if (char_at(r, end) == '.')
        end = skip_digits(r, end + 1);
    bool whole = end == first + n_whole;
    if (char_at(r, end) == 'e' || char_at(r, end) == 'E') {
        has_exponent = true;
        end += char_at(r, end + 1) == '+' || char_at(r, end + 1) == '-' ? 2 : 1;
        end = skip_digits(r, end);
    }
    /* Other characters behind a digit, and zeros in front, are no JSON: jansson says so. */
    bool legal = n_whole && r->in.data[end - 1] >= '0' && r->in.data[end - 1] <= '9' &&
                 (n_whole == 1 || r->in.data[first] != '0');
    if (!legal || (n_whole <= SHORT && !has_exponent))
        return end;
    char *number = mr_strndup(r->in.data + at, end - at);
    r->failed = r->failed || !number;
    if (number && (whole && !has_exponent ? is_beyond_64_bits(number) : is_too_large(number))) {
        bool too_large = is_too_large(number);
        if (r->rounds && too_large)
            replace(r, first, end - first, mr_str_from("1.7976931348623157e308"));
        else if (r->rounds)
            replace(r, end, 0, mr_str_from(".0"));
        if (!r->rounds) {
            replace(r, at, 0, mr_str_from("{\"" JSON_LONG_NAME "\":\""));
            replace(r, end, 0, mr_str_from("\"}"));
        }
    }
    mr_free(number);
    return end;
}

static void rewrite(rewriter *r) {
    for (size_t i = 0; i < r->in.len && !r->failed;) {
        char c = r->in.data[i];
        i = c == '"' ? rewrite_string(r, i) : c == '-' || (c >= '0' && c <= '9') ? rewrite_number(r, i) : i + 1;
    }
    if (r->n_done)
        append(r, r->in.data + r->n_done, r->in.len - r->n_done);
}

json_t *mr_json_read(mr_str text, unsigned flags, mr_err *err) {
    json_error_t why;
    rewriter r = {.in = text, .rounds = flags & MR_JSON_ROUNDED};
    rewrite(&r);
    if (r.n_done && !r.failed)
        text = (mr_str){r.out.data, r.out.len};
    json_t *value = NULL;
    if (!r.failed)
        value = json_loadb(
            text.len ? text.data : "", text.len,
            JSON_DECODE_ANY | JSON_ALLOW_NUL | (flags & MR_JSON_UNIQUE_NAMES ? JSON_REJECT_DUPLICATES : 0), &why);
    if (!value && (r.failed || json_error_code(&why) == json_error_out_of_memory))
        (void)mr_err_set(err, MR_E_NO_MEMORY, "no memory for JSON");
    else if (!value)
        (void)mr_err_set(err, MR_E_FORMAT, "line %d, column %d: %s", why.line, why.column, why.text);
    mr_text_buf_deinit(&r.out);
    return value;
}
