/* coordinator/serving/jinja/filters.c - the filters of single values: strings and numbers. */
// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/serving/jinja/chars.h"
#include "coordinator/serving/jinja/value.h"

static bool fail_undefined(jx *x, jv v) {
    return jx_fail(x, MR_E_INVALID, "%.*s", (int)v.s->len, v.s->data);
}

/* Reads an optional integer argument: `otherwise` stands for a missing one and for None. */
static bool int_or(jx *x, jv v, const char *what, int64_t otherwise, int64_t *out) {
    *out = otherwise;
    return v.kind == J_MISSING || v.kind == J_NONE || jv_as_int(x, v, what, out);
}

/* ---- texts ---- */

BUILTIN(f_case) {
    return jv_to_str(x, self, &self) && jstr_case(x, self, (jcase)how, out);
}

/* Unlike str.title, the filter starts a word only behind white space, '-' and an opening bracket. */
BUILTIN(f_title) {
    jtext text = {0};
    bool at_word = true;
    if (!jv_to_str(x, self, &self))
        return false;
    for (size_t i = 0, n; i < self.s->len; i += n) {
        uint32_t c = char_decode(self.s->data + i, self.s->len - i, &n), changed[3] = {0};
        bool separator = char_is_space(c) || (c < 0x80 && c && strchr("-({[<", (char)c));
        int n_changed = at_word ? char_upper(c, changed) : (changed[0] = char_lower(c), 1);
        for (int k = 0; k < n_changed; k++)
            if (!jtext_char(x, &text, changed[k]))
                return false;
        at_word = separator;
    }
    return jv_text(x, &text, out);
}

BUILTIN(f_trim) {
    return jv_to_str(x, self, &self) && jstr_strip(x, self, a[0], J_LEFT | J_RIGHT, out);
}

BUILTIN(f_string) {
    return jv_to_str(x, self, out);
}

BUILTIN(f_replace) {
    jv old, new;
    int64_t count;
    return jv_to_str(x, self, &self) && jv_to_str(x, a[0], &old) && jv_to_str(x, a[1], &new) &&
           int_or(x, a[2], "count", -1, &count) && jstr_replace(x, self.s, old.s, new.s, count, out);
}

BUILTIN(f_safe) {
    if (!jv_to_str(x, self, out))
        return false;
    out->markup = true;
    return true;
}

BUILTIN(f_escape) {
    return jv_escape(x, self, out);
}

BUILTIN(f_format) {
    if (args->n_pos && args->n_named)
        return jx_fail(x, MR_E_INVALID, "can't handle positional and keyword arguments at the same time");
    jlist *tuple = jlist_new(x, args->n_pos);
    jdict *d = jdict_new(x, args->n_named);
    if (!tuple || !d || !jv_to_str(x, self, &self))
        return false;
    for (size_t i = 0; i < args->n_pos; i++)
        if (!jlist_push(x, tuple, args->pos[i]))
            return false;
    for (size_t i = 0; i < args->n_named; i++)
        if (!jdict_set(x, d, args->names[i], args->named[i]))
            return false;
    return jv_percent(x, self.s, args->n_named ? (jv){.kind = J_DICT, .dict = d} : jv_list(J_TUPLE, tuple), out);
}

/* The indentation of a line: `width` spaces, or width itself if it is a string. */
static bool indention(jx *x, jv width, jv *out) {
    int64_t n;
    jtext text = {0};
    if (width.kind == J_STR)
        return jv_give(out, width);
    if (!int_or(x, width, "width", 4, &n))
        return false;
    for (int64_t i = 0; i < n; i++)
        if (!jtext_add(x, &text, " ", 1))
            return false;
    return jv_text(x, &text, out);
}

BUILTIN(f_indent) {
    jv before;
    jtext with_end = {0}, text = {0};
    jlist *lines = jlist_new(x, 0);
    if (!jv_as_str(x, self, "what is indented", &self.s) || !lines || !indention(x, a[0], &before))
        return false;
    bool first = jv_truth(a[1]), blank = jv_truth(a[2]);
    if (!jtext_add(x, &with_end, self.s->data, self.s->len) || !jtext_puts(x, &with_end, "\n") ||
        !jstr_split_lines(x, &(jstr){with_end.data, with_end.len, -1}, false, lines))
        return false;
    for (size_t i = 0; i < lines->n; i++) {
        const jstr *line = lines->items[i].s;
        bool indented = i ? blank || line->len : first;
        if ((i && !jtext_puts(x, &text, "\n")) || (indented && !jv_write(x, before, &text)) ||
            !jtext_add(x, &text, line->data, line->len))
            return false;
    }
    return jv_mark(out, self.markup, jv_text(x, &text, out));
}

BUILTIN(f_center) {
    int64_t width;
    return jv_to_str(x, self, &self) && int_or(x, a[0], "width", 80, &width) && jstr_pad(x, self, width, ' ', '^', out);
}

BUILTIN(f_truncate) {
    int64_t length, leeway, n;
    jv end = a[2];
    if (!jv_length(x, self, &n) || !int_or(x, a[0], "length", 255, &length) || !int_or(x, a[3], "leeway", 5, &leeway) ||
        (end.kind == J_MISSING && !jv_str(x, "...", 3, &end)) || !jv_to_str(x, end, &end))
        return false;
    *out = self;
    if (length < jstr_chars(end.s) || leeway < 0)
        return jx_fail(x, MR_E_INVALID, "the length is less than that of the end");
    if (n <= length + leeway)
        return true;
    if (!jv_as_str(x, self, "what is truncated", &self.s))
        return false;
    size_t cut = jstr_offset(self.s, length - jstr_chars(end.s));
    const char *space = jv_truth(a[1]) ? NULL : memrchr(self.s->data, ' ', cut);
    jv head;
    return jx_work(x, self.s->len) && jv_str(x, self.s->data, space ? (size_t)(space - self.s->data) : cut, &head) &&
           jv_concat(x, head.s, end.s, out);
}

BUILTIN(f_wordcount) {
    int64_t n = 0;
    bool in_word = false;
    if (!jv_to_str(x, self, &self))
        return false;
    for (size_t i = 0, len; i < self.s->len; i += len) {
        uint32_t c = char_decode(self.s->data + i, self.s->len - i, &len);
        bool word = char_is_alpha(c) || char_is_decimal(c) || c == '_';
        n += word && !in_word;
        in_word = word;
    }
    *out = jv_int(n);
    return jx_work(x, 4 * self.s->len); /* each character is looked up in tables */
}

static bool json_separators(jx *x, jv given, json_style *style) {
    jv item, key;
    if (given.kind == J_MISSING || given.kind == J_NONE) {
        bool ok =
            jv_str(x, style->has_indent ? "," : ", ", style->has_indent ? 1 : 2, &item) && jv_str(x, ": ", 2, &key);
        style->item_separator = item.s;
        style->key_separator = key.s;
        return ok;
    }
    jlist *items;
    if (!jv_items(x, given, &items))
        return false;
    if (items->n != 2)
        return jx_fail(x, MR_E_INVALID, "separators must be two strings");
    return jv_as_str(x, items->items[0], "a separator", &style->item_separator) &&
           jv_as_str(x, items->items[1], "a separator", &style->key_separator);
}

/* json.dumps. As in the transformers library, characters outside of ASCII are not escaped by default. */
BUILTIN(f_tojson) {
    json_style style = {.ascii = jv_truth(a[0]), .sort_keys = jv_truth(a[3])};
    jtext text = {0};
    style.has_indent = a[1].kind != J_MISSING && a[1].kind != J_NONE;
    return (!style.has_indent || indention(x, a[1], &style.indent)) && json_separators(x, a[2], &style) &&
           jv_write_json(x, self, &style, 0, &text) && jv_text(x, &text, out);
}

BUILTIN(f_urlencode) {
    jtext text = {0};
    if (self.kind != J_STR && self.kind != J_UNDEFINED && jv_is_iterable(self))
        return jx_fail(x, MR_E_INVALID, "urlencode of pairs is not supported");
    if (!jv_to_str(x, self, &self))
        return false;
    for (size_t i = 0; i < self.s->len; i++) {
        unsigned char c = (unsigned char)self.s->data[i];
        char code[8];
        snprintf(code, sizeof code, isalnum(c) || (c && strchr("_.-~/", c)) ? "%c" : "%%%02X", c);
        if (!jtext_puts(x, &text, code))
            return false;
    }
    return jv_text(x, &text, out);
}

/* ---- numbers ---- */

/* Copies a number without the white space around it and without single underscores between digits. False: the number
 * does not fit into `size` bytes, or contains a zero byte. */
static bool plain_number(const jstr *s, char *out, size_t size) {
    size_t start = 0, end = s->len, n = 0;
    while (start < end && isspace((unsigned char)s->data[start]))
        start++;
    while (end > start && isspace((unsigned char)s->data[end - 1]))
        end--;
    for (size_t i = start; i < end; i++) {
        bool between = i > start && i + 1 < end && isalnum((unsigned char)s->data[i - 1]) &&
                       isalnum((unsigned char)s->data[i + 1]);
        if (s->data[i] == '_' && between)
            continue;
        if (n + 1 >= size || !s->data[i])
            return false;
        out[n++] = s->data[i];
    }
    out[n] = 0;
    return n > 0;
}

static bool text_to_float(const jstr *s, double *out) {
    char text[128], *end;
    if (!plain_number(s, text, sizeof text) || strpbrk(text, "xX(_"))
        return false;
    *out = strtod(text, &end);
    return !*end;
}

static bool text_to_int(const jstr *s, int base, int64_t *out) {
    char text[128], *end;
    if (!plain_number(s, text, sizeof text))
        return false;
    char *digits = text + (text[0] == '-' || text[0] == '+');
    int prefix = digits[0] != '0'                           ? 0
                 : tolower((unsigned char)digits[1]) == 'x' ? 16
                 : tolower((unsigned char)digits[1]) == 'o' ? 8
                 : tolower((unsigned char)digits[1]) == 'b' ? 2
                                                            : 0;
    if (prefix && (base == prefix || base == 0)) { /* a prefix of the base is allowed: 0x1f in base 16 */
        memmove(digits, digits + 2, strlen(digits + 2) + 1);
        base = prefix;
    }
    if (!isalnum((unsigned char)*digits) || (base == 16 && tolower((unsigned char)digits[1]) == 'x'))
        return false;
    errno = 0;
    *out = strtoll(text, &end, base ? base : 10);
    return !*end && !errno;
}

BUILTIN(f_int) {
    int64_t base, i;
    double f = NAN;
    if (self.kind == J_UNDEFINED)
        return fail_undefined(x, self);
    if (!int_or(x, a[1], "base", 10, &base) || !jx_work(x, self.kind == J_STR ? self.s->len : 0))
        return false;
    *out = a[0].kind == J_MISSING ? jv_int(0) : a[0];
    if (self.kind == J_INT || self.kind == J_BOOL)
        return jv_give(out, jv_int(self.kind == J_INT ? self.i : self.b));
    if (self.kind == J_LONG)
        return jv_give(out, self);
    if (self.kind == J_STR && (base == 0 || (base >= 2 && base <= 36)) && text_to_int(self.s, (int)base, &i))
        return jv_give(out, jv_int(i));
    if (self.kind == J_FLOAT)
        f = self.f;
    else if (self.kind != J_STR || !text_to_float(self.s, &f))
        return true;
    if (isnan(f) || isinf(f))
        return true;
    if (f <= -9.2e18 || f >= 9.2e18)
        return jx_fail(x, MR_E_INVALID, "an integer does not fit 64 bits");
    return jv_give(out, jv_int((int64_t)f));
}

BUILTIN(f_float) {
    double f;
    if (self.kind == J_UNDEFINED)
        return fail_undefined(x, self);
    if (!jx_work(x, self.kind == J_STR ? self.s->len : 0))
        return false;
    *out = a[0].kind == J_MISSING ? jv_float(0) : a[0];
    if (jv_is_number(self))
        *out = jv_float(jv_number(self));
    else if (self.kind == J_LONG)
        *out = jv_float(jv_long_number(self));
    else if (self.kind == J_STR && text_to_float(self.s, &f))
        *out = jv_float(f);
    return true;
}

BUILTIN(f_abs) {
    if (self.kind == J_UNDEFINED)
        return fail_undefined(x, self);
    if (self.kind == J_LONG) {
        size_t sign = self.s->data[0] == '-';
        bool ok = jv_str(x, self.s->data + sign, self.s->len - sign, out);
        out->kind = J_LONG;
        return ok;
    }
    if (!jv_is_number(self))
        return jx_fail(x, MR_E_INVALID, "bad operand type for abs(): '%s'", jv_type(self));
    if (self.kind == J_FLOAT)
        return jv_give(out, jv_float(fabs(self.f)));
    int64_t i = self.kind == J_INT ? self.i : self.b;
    return i < 0 ? jv_arithmetic(x, '-', jv_int(0), jv_int(i), out) : jv_give(out, jv_int(i));
}

BUILTIN(f_round) {
    int64_t precision;
    char text[400];
    jstr *method = NULL;
    if (!int_or(x, a[0], "precision", 0, &precision) ||
        (a[1].kind != J_MISSING && !jv_as_str(x, a[1], "the method", &method)))
        return false;
    if (self.kind == J_UNDEFINED)
        return fail_undefined(x, self);
    if (self.kind == J_LONG)
        return jv_give(out, self);
    if (!jv_is_number(self) || precision < 0 || precision > 50)
        return jx_fail(x, MR_E_INVALID, "'%s' cannot be rounded to %lld places", jv_type(self), (long long)precision);
    double scale = pow(10, (double)precision), v = jv_number(self);
    if (method && jstr_is(method, "ceil")) {
        *out = jv_float(ceil(v * scale) / scale);
    } else if (method && jstr_is(method, "floor")) {
        *out = jv_float(floor(v * scale) / scale);
    } else if (method && !jstr_is(method, "common")) {
        return jx_fail(x, MR_E_INVALID, "method must be common, ceil or floor");
    } else if (self.kind != J_FLOAT) {
        *out = jv_int(self.kind == J_INT ? self.i : self.b);
    } else { /* printf rounds to the nearest decimal value */
        snprintf(text, sizeof text, "%.*f", (int)precision, v);
        *out = jv_float(strtod(text, NULL));
    }
    return true;
}

BUILTIN(f_default) {
    bool replace = self.kind == J_UNDEFINED || (jv_truth(a[1]) && !jv_truth(self));
    *out = !replace ? self : a[0];
    return !replace || a[0].kind != J_MISSING || jv_str(x, "", 0, out);
}

BUILTIN(f_length) {
    int64_t n = 0;
    bool ok = jv_length(x, self, &n);
    *out = jv_int(n);
    return ok;
}

const jbuiltin *jfilter_find(const char *name, size_t n) {
    static const jbuiltin table[] = {{"upper", "", 0, f_case, CASE_UPPER},
                                     {"lower", "", 0, f_case, CASE_LOWER},
                                     {"capitalize", "", 0, f_case, CASE_CAPITALIZE},
                                     {"title", "", 0, f_title, 0},
                                     {"trim", "chars", 0, f_trim, 0},
                                     {"string", "", 0, f_string, 0},
                                     {"replace", "old new count", 2, f_replace, 0},
                                     {"safe", "", 0, f_safe, 0},
                                     {"escape", "", 0, f_escape, 0},
                                     {"e", "", 0, f_escape, 0},
                                     {"format", NULL, 0, f_format, 0},
                                     {"indent", "width first blank", 0, f_indent, 0},
                                     {"center", "width", 0, f_center, 0},
                                     {"truncate", "length killwords end leeway", 0, f_truncate, 0},
                                     {"wordcount", "", 0, f_wordcount, 0},
                                     {"tojson", "ensure_ascii indent separators sort_keys", 0, f_tojson, 0},
                                     {"urlencode", "", 0, f_urlencode, 0},
                                     {"int", "default base", 0, f_int, 0},
                                     {"float", "default", 0, f_float, 0},
                                     {"abs", "", 0, f_abs, 0},
                                     {"round", "precision method", 0, f_round, 0},
                                     {"default", "default_value boolean", 0, f_default, 0},
                                     {"d", "default_value boolean", 0, f_default, 0},
                                     {"length", "", 0, f_length, 0},
                                     {"count", "", 0, f_length, 0}};
    const jbuiltin *b = jbuiltin_in(table, sizeof table / sizeof *table, name, n);
    return b ? b : jfilter_list_find(name, n);
}
