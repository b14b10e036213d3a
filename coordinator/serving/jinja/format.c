/* coordinator/serving/jinja/format.c - Python's str.format, with the mini-language of its format specifications. */
// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/serving/jinja/chars.h"
#include "coordinator/serving/jinja/value.h"

enum { MAX_WIDTH = 10000, MAX_PRECISION = 100 };

typedef struct spec {
    uint32_t fill;
    char align, sign, type; /* 0: not given */
    bool alternate, zero;
    char group;               /* ',' or '_' */
    int32_t width, precision; /* precision -1: not given */
} spec;

static bool read_number(const char *s, size_t n, size_t *i, int32_t most, int32_t *out) {
    *out = 0;
    for (; *i < n && isdigit((unsigned char)s[*i]); ++*i) {
        *out = *out * 10 + (s[*i] - '0');
        if (*out > most)
            return false;
    }
    return true;
}

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static bool read_spec(jx *x, const char *s, size_t n, spec *out) {
    size_t i = 0, first = 0;
    *out = (spec){.fill = ' ', .precision = -1};
    uint32_t fill = n ? char_decode(s, n, &first) : 0;
    if (n > first && strchr("<>=^", s[first])) {
        out->fill = fill;
        out->align = s[first];
        i = first + 1;
    } else if (n && strchr("<>=^", s[0])) {
        out->align = s[i++];
    }
    if (i < n && strchr("+- ", s[i]))
        out->sign = s[i++];
    if (i < n && s[i] == '#')
        out->alternate = (i++, true);
    if (i < n && s[i] == '0') {
        out->zero = (i++, true);
        out->fill = out->align ? out->fill : '0';
        out->align = out->align ? out->align : '=';
    }
    bool ok = read_number(s, n, &i, MAX_WIDTH, &out->width);
    if (i < n && (s[i] == ',' || s[i] == '_'))
        out->group = s[i++];
    if (ok && i < n && s[i] == '.') {
        i++;
        ok = read_number(s, n, &i, MAX_PRECISION, &out->precision);
    }
    if (ok && i < n && strchr("bcdeEfFgGnosxX%", s[i]))
        out->type = s[i++];
    return (ok && i == n) || jx_fail(x, MR_E_INVALID, "invalid format specifier");
}

/* Writes sign and digits, padded to the width. Padding zeros come between sign and digits. */
static bool pad(jx *x, const spec *f, const char *sign, const char *body, size_t n_bytes, int64_t n_chars, char align,
                jtext *out) {
    int64_t missing = f->width - n_chars - (int64_t)strlen(sign);
    missing = missing < 0 ? 0 : missing;
    int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0, inside = align == '=' ? missing : 0;
    int64_t after = missing - before - inside;
    for (int64_t i = 0; i < before; i++)
        if (!jtext_char(x, out, f->fill))
            return false;
    if (!jtext_puts(x, out, sign))
        return false;
    for (int64_t i = 0; i < inside; i++)
        if (!jtext_char(x, out, f->fill))
            return false;
    if (!jtext_add(x, out, body, n_bytes))
        return false;
    for (int64_t i = 0; i < after; i++)
        if (!jtext_char(x, out, f->fill))
            return false;
    return true;
}

static void group_digits(char *text, size_t size, char group) {
    size_t n = strspn(text, "0123456789"), n_groups = n ? (n - 1) / 3 : 0, len = strlen(text);
    if (!group || len + n_groups >= size)
        return;
    memmove(text + n + n_groups, text + n, len - n + 1);
    for (size_t i = n, to = n + n_groups, k = 0; i-- > 0;) {
        text[--to] = text[i];
        if (++k % 3 == 0 && i)
            text[--to] = group;
    }
}

static void write_base(uint64_t v, int base, bool upper, char *out) {
    char reversed[65];
    int n = 0;
    do
        reversed[n++] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[v % (unsigned)base];
    while (v /= (unsigned)base);
    while (n)
        *out++ = reversed[--n];
    *out = 0;
}

static bool format_int(jx *x, int64_t v, const spec *f, jtext *out) {
    char text[160], sign[8];
    int base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
    if (f->precision >= 0)
        return jx_fail(x, MR_E_INVALID, "precision not allowed in integer format specifier");
    if (f->type == 'c') {
        if (v < 0 || v > 0x10FFFF || (v >= 0xD800 && v < 0xE000))
            return jx_fail(x, MR_E_INVALID, "a number that is no character");
        return pad(x, f, "", text, char_encode((uint32_t)v, text), 1, f->align ? f->align : '<', out);
    }
    write_base(v < 0 ? 0 - (uint64_t)v : (uint64_t)v, base, f->type == 'X', text);
    if (base == 10)
        group_digits(text, sizeof text, f->group);
    snprintf(sign, sizeof sign, "%s", v < 0 ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "");
    if (f->alternate && base != 10)
        snprintf(sign + strlen(sign), 3, "0%c", f->type);
    return pad(x, f, sign, text, strlen(text), (int64_t)strlen(text), f->align ? f->align : '>', out);
}

static void upper_text(char *s) {
    for (; *s; s++)
        *s = (char)toupper((unsigned char)*s);
}

static bool format_float(jx *x, double v, const spec *f, jtext *out) {
    char text[512];
    const char *sign = signbit(v) && !isnan(v) ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
    double size = fabs(v) * (f->type == '%' ? 100 : 1);
    int precision = f->precision < 0 ? 6 : f->precision;
    char type = f->type == '%' || f->type == 'F' ? 'f' : f->type == 'n' ? 'g' : f->type;
    if (isnan(v) || isinf(v))
        snprintf(text, sizeof text, isnan(v) ? "nan" : "inf");
    else if (!type && f->precision < 0)
        jv_float_repr(size, text);
    else if (!type || type == 'g' || type == 'G')
        snprintf(text, sizeof text, "%.*g", precision ? precision : 1, size);
    else if (type == 'e' || type == 'E')
        snprintf(text, sizeof text, "%.*e", precision, size);
    else
        snprintf(text, sizeof text, "%.*f", precision, size);
    if (!type && f->precision >= 0 && !strpbrk(text, ".en"))
        strcat(text, ".0");
    if (f->type == 'E' || f->type == 'G' || f->type == 'F')
        upper_text(text);
    group_digits(text, sizeof text, f->group);
    if (f->type == '%')
        strcat(text, "%");
    return pad(x, f, sign, text, strlen(text), (int64_t)strlen(text), f->align ? f->align : '>', out);
}

static bool format_string(jx *x, jv v, const spec *f, jtext *out) {
    if ((f->type && f->type != 's') || f->sign || f->group || (f->align == '=' && !f->zero))
        return jx_fail(x, MR_E_INVALID, "a format that is not for strings");
    int64_t n = jstr_chars(v.s);
    n = f->precision >= 0 && f->precision < n ? f->precision : n;
    return pad(x, f, "", v.s->data, jstr_offset(v.s, n), n, !f->align || f->align == '=' ? '<' : f->align, out);
}

bool jv_format_spec(jx *x, jv v, const char *text, size_t n, jtext *out) {
    spec f;
    if (!read_spec(x, text, n, &f))
        return false;
    if (!n)
        return jv_write(x, v, out);
    if (v.kind == J_STR)
        return format_string(x, v, &f, out);
    if (v.kind == J_LONG && f.type && strchr("eEfFgG%", f.type))
        v = jv_float(jv_long_number(v));
    if (v.kind == J_LONG && (!f.type || f.type == 'd'))
        return pad(x, &f, "", v.s->data, v.s->len, (int64_t)v.s->len, f.align ? f.align : '>', out);
    if (v.kind == J_FLOAT || (jv_is_number(v) && f.type && strchr("eEfFgG%", f.type)))
        return f.type && strchr("bcdosxX", f.type) ? jx_fail(x, MR_E_INVALID, "a format that is not for floats")
                                                   : format_float(x, jv_number(v), &f, out);
    if (v.kind == J_BOOL && !f.type)
        return jv_to_str(x, v, &v) && format_string(x, v, &f, out);
    if (jv_is_number(v))
        return f.type == 's' ? jx_fail(x, MR_E_INVALID, "a format that is not for integers")
                             : format_int(x, v.kind == J_INT ? v.i : v.b, &f, out);
    return jx_fail(x, MR_E_INVALID, "unsupported format string passed to %s.__format__", jv_type(v));
}

/* The argument that a replacement field names by a number or a name, or the next argument if the field has neither.
 * Attributes (.name) and items ([key]) may follow. */
static bool field_value(jx *x, const char *s, size_t n, const jargs *args, size_t *next, jv *out) {
    size_t end = 0;
    while (end < n && s[end] != '.' && s[end] != '[')
        end++;
    bool number = true;
    for (size_t i = 0; i < end; i++)
        number &= isdigit((unsigned char)s[i]) != 0;
    if (number) {
        int32_t at = 0;
        size_t i = 0;
        if (end && !read_number(s, end, &i, INT32_MAX / 20, &at))
            return jx_fail(x, MR_E_INVALID, "a format field has too large a number");
        size_t idx = end ? (size_t)at : (*next)++;
        if (idx >= args->n_pos)
            return jx_fail(x, MR_E_INVALID, "replacement index %zu out of range", idx);
        *out = args->pos[idx];
    } else {
        out->kind = J_MISSING;
        for (size_t i = 0; i < args->n_named; i++)
            if (mr_str_equal((mr_str){args->names[i].s->data, args->names[i].s->len}, (mr_str){s, end}))
                *out = args->named[i];
        if (out->kind == J_MISSING)
            return jx_fail(x, MR_E_INVALID, "format has no argument '%.*s'", (int)(end < 60 ? end : 60), s);
    }
    while (end < n) {
        size_t start = end + 1;
        bool item = s[end] == '[';
        for (end = start; end < n && (item ? s[end] != ']' : s[end] != '.' && s[end] != '[');)
            end++;
        jv name;
        if (!jv_str(x, s + start, end - start, &name))
            return false;
        if (item && name.s->len && strspn(name.s->data, "0123456789") >= name.s->len)
            name = jv_int(strtoll(name.s->data, NULL, 10));
        if (!(item ? jv_subscript(x, *out, name, out) : jv_attribute(x, *out, name.s, out)))
            return false;
        if (out->kind == J_UNDEFINED)
            return jx_fail(x, MR_E_INVALID, "%.*s", (int)out->s->len, out->s->data);
        end += item;
    }
    return true;
}

static bool format_field(jx *x, const char *s, size_t n, const jargs *args, size_t *next, jtext *out) {
    const char *colon = memchr(s, ':', n);
    size_t head = colon ? (size_t)(colon - s) : n;
    const char *bang = memchr(s, '!', head);
    char conversion = bang && bang + 1 < s + head ? bang[1] : 0;
    jv v;
    if (bang && (!strchr("rs", conversion) || !conversion || bang + 2 != s + head))
        return jx_fail(x, MR_E_INVALID, "a format field has an unknown conversion");
    if (!field_value(x, s, bang ? (size_t)(bang - s) : head, args, next, &v))
        return false;
    if (conversion) {
        jtext text = {0};
        if (!(conversion == 'r' ? jv_repr(x, v, &text) : jv_write(x, v, &text)) || !jv_text(x, &text, &v))
            return false;
    }
    return jv_format_spec(x, v, colon ? colon + 1 : "", colon ? n - head - 1 : 0, out);
}

bool jv_format(jx *x, jstr *format, const jargs *args, jv *out) {
    jtext text = {0};
    const char *s = format->data;
    size_t n = format->len, next = 0;
    for (size_t i = 0; i < n;) {
        if ((s[i] == '{' || s[i] == '}') && i + 1 < n && s[i + 1] == s[i]) {
            if (!jtext_add(x, &text, s + i, 1))
                return false;
            i += 2;
            continue;
        }
        if (s[i] == '}')
            return jx_fail(x, MR_E_INVALID, "single '}' encountered in format string");
        if (s[i] != '{') {
            size_t start = i;
            while (i < n && s[i] != '{' && s[i] != '}')
                i++;
            if (!jtext_add(x, &text, s + start, i - start))
                return false;
            continue;
        }
        const char *end = memchr(s + i, '}', n - i);
        if (!end)
            return jx_fail(x, MR_E_INVALID, "expected '}' before end of string");
        if (!format_field(x, s + i + 1, (size_t)(end - s) - i - 1, args, &next, &text))
            return false;
        i = (size_t)(end - s) + 1;
    }
    return jv_text(x, &text, out);
}
