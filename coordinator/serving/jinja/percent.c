/* coordinator/serving/jinja/percent.c - Python's operator `format % values`: the conversions of C, and a few of
 * Python. */
// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <stdio.h>

#include "coordinator/serving/jinja/value.h"

typedef struct percent {
    jx *x;
    jv values;    /* as given */
    jlist *tuple; /* positional ones */
    size_t next;
    bool used_map; /* names were taken from a dict */
} percent;

static bool next_value(percent *p, const char *name, size_t n_name, jv *out) {
    if (name) {
        if (p->values.kind != J_DICT)
            return jx_fail(p->x, MR_E_INVALID, "format requires a mapping");
        const jentry *entry = jdict_find_str(p->x, p->values.dict, name, n_name);
        p->used_map = true;
        if (!entry)
            return jx_fail(p->x, MR_E_INVALID, "format names a key that is missing");
        return jv_give(out, entry->value);
    }
    if (p->next >= p->tuple->n)
        return jx_fail(p->x, MR_E_INVALID, "not enough arguments for format string");
    return jv_give(out, p->tuple->items[p->next++]);
}

/* Writes one value. The flags, width and precision of C are translated to the mini-language of str.format. */
static bool write_field(percent *p, const char *flags, size_t n_flags, const char *width, size_t n_width, char type,
                        jv v, jtext *out) {
    char spec[80];
    bool left = memchr(flags, '-', n_flags), zero = memchr(flags, '0', n_flags);
    bool number = strchr("diouxXeEfFgG", type) != NULL;
    if (n_width > 40)
        return jx_fail(p->x, MR_E_INVALID, "a format has too long a width");
    if (!number) {
        jtext text = {0};
        if (!(type == 's' ? jv_write(p->x, v, &text) : jv_repr(p->x, v, &text)) || !jv_text(p->x, &text, &v))
            return false;
        snprintf(spec, sizeof spec, "%c%.*s", left ? '<' : '>', (int)n_width, width);
        return jv_format_spec(p->x, v, spec, strlen(spec), out);
    }
    if (!jv_is_number(v) && v.kind != J_LONG)
        return jx_fail(p->x, MR_E_INVALID, "%%%c format: a real number is required, not %s", type, jv_type(v));
    bool integer = strchr("diouxX", type) != NULL;
    if (integer && v.kind == J_FLOAT)
        v = jv_int(v.f >= -9e18 && v.f <= 9e18 ? (int64_t)v.f : 0);
    if (v.kind == J_BOOL)
        v = jv_int(v.b);
    const char *sign = memchr(flags, '+', n_flags) ? "+" : memchr(flags, ' ', n_flags) ? " " : "";
    const char *alternate = memchr(flags, '#', n_flags) ? "#" : "";
    snprintf(spec, sizeof spec, "%s%s%s%s%.*s%c",
             left   ? "<"
             : zero ? ""
                    : ">",
             sign, alternate, zero && !left ? "0" : "", (int)n_width, width, strchr("diu", type) ? 'd' : type);
    return jv_format_spec(p->x, v, spec, strlen(spec), out);
}

/* Reads and writes one field. s: the text behind the %. used: the bytes read. */
static bool field(percent *p, const char *s, size_t n, size_t *used, jtext *out) {
    size_t i = 0, n_name = 0;
    const char *name = NULL;
    if (i < n && s[i] == '(') {
        const char *end = memchr(s, ')', n);
        if (!end)
            return jx_fail(p->x, MR_E_INVALID, "incomplete format key");
        name = s + 1;
        n_name = (size_t)(end - name);
        i = n_name + 2;
    }
    size_t flags = i;
    while (i < n && strchr("-+ #0", s[i]))
        i++;
    size_t width = i;
    while (i < n && (isdigit((unsigned char)s[i]) || s[i] == '.'))
        i++;
    if (i >= n)
        return jx_fail(p->x, MR_E_INVALID, "incomplete format");
    *used = i + 1;
    if (s[i] == '%')
        return jtext_puts(p->x, out, "%");
    if (!strchr("sradiouxXeEfFgG", s[i]))
        return jx_fail(p->x, MR_E_INVALID, "unsupported format character at %zu", i);
    jv v;
    return next_value(p, name, n_name, &v) &&
           write_field(p, s + flags, width - flags, s + width, i - width, s[i], v, out);
}

bool jv_percent(jx *x, jstr *format, jv values, jv *out) {
    percent p = {.x = x, .values = values};
    jtext text = {0};
    p.tuple = values.kind == J_TUPLE ? values.list : jlist_new(x, 0);
    if (!p.tuple || (values.kind != J_TUPLE && !jlist_push(x, p.tuple, values)))
        return false;
    for (size_t i = 0; i < format->len;) {
        const char *at = memchr(format->data + i, '%', format->len - i);
        size_t plain = at ? (size_t)(at - format->data) - i : format->len - i, used = 0;
        if (!jtext_add(x, &text, format->data + i, plain))
            return false;
        i += plain + 1;
        if (!at)
            break;
        if (!field(&p, format->data + i, format->len - i, &used, &text))
            return false;
        i += used;
    }
    /* As in Python, values that can be indexed may be left over, except the items of a tuple and a string. */
    bool spare = values.kind == J_DICT || values.kind == J_LIST || values.kind == J_RANGE || values.kind == J_UNDEFINED;
    if (p.next < p.tuple->n && !p.used_map && !spare)
        return jx_fail(x, MR_E_INVALID, "not all arguments converted during string formatting");
    return jv_text(x, &text, out);
}
