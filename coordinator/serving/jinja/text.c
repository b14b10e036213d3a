/* coordinator/serving/jinja/text.c - Python's str() and repr() of every type of value. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/serving/jinja/chars.h"
#include "coordinator/serving/jinja/interp.h"

/* Writes the fewest digits that read back as the same number. An exponent below -4 or above 15 is written as such. */
void jv_float_repr(double f, char out[32]) {
    char digits[32];
    int precision = 0;
    if (isnan(f) || isinf(f)) {
        snprintf(out, 32, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    do
        snprintf(digits, sizeof digits, "%.*e", precision, f);
    while (strtod(digits, NULL) != f && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        snprintf(out, 32, "%.*e", precision, f);
        return;
    }
    int decimals = precision - exponent;
    snprintf(out, 32, "%.*f", decimals < 1 ? 1 : decimals, f);
}

static bool repr_char(jx *x, uint32_t c, char quote, jtext *out) {
    char text[16];
    static const char from[] = "\n\r\t\\", to[] = "nrt\\";
    const char *at = c && c < 0x80 ? strchr(from, (char)c) : NULL;
    if (at)
        snprintf(text, sizeof text, "\\%c", to[at - from]);
    else if (c == (unsigned char)quote)
        snprintf(text, sizeof text, "\\%c", quote);
    else if (char_is_printable(c))
        return jtext_char(x, out, c);
    else
        snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    return jtext_puts(x, out, text);
}

static bool repr_string(jx *x, const jstr *s, jtext *out) {
    bool single = s->len && memchr(s->data, '\'', s->len), doubled = s->len && memchr(s->data, '"', s->len);
    char quote = single && !doubled ? '"' : '\'';
    if (!jtext_add(x, out, &quote, 1))
        return false;
    for (size_t i = 0, n; i < s->len; i += n)
        if (!repr_char(x, char_decode(s->data + i, s->len - i, &n), quote, out))
            return false;
    return jtext_add(x, out, &quote, 1);
}

static bool repr_list(jx *x, const char *open, const jlist *list, const char *close, jtext *out) {
    if (!jtext_puts(x, out, open))
        return false;
    for (size_t i = 0; i < list->n; i++)
        if ((i && !jtext_puts(x, out, ", ")) || !jv_repr(x, list->items[i], out))
            return false;
    return jtext_puts(x, out, close);
}

static bool repr_dict(jx *x, const jdict *d, jtext *out) {
    for (size_t i = 0; i < d->n; i++)
        if (!jtext_puts(x, out, i ? ", " : "{") || !jv_repr(x, d->entries[i].key, out) || !jtext_puts(x, out, ": ") ||
            !jv_repr(x, d->entries[i].value, out))
            return false;
    return jtext_puts(x, out, d->n ? "}" : "{}");
}

static bool repr_object(jx *x, jv v, jtext *out) {
    char text[96];
    if (v.kind == J_RANGE && v.range->step != 1)
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)v.range->start, (long long)v.range->stop,
                 (long long)v.range->step);
    else if (v.kind == J_RANGE)
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)v.range->start, (long long)v.range->stop);
    else if (v.kind == J_LOOP)
        snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.loop->at + 1, v.loop->items->n);
    else
        snprintf(text, sizeof text, "<%s object>", jv_type(v));
    return jtext_puts(x, out, text);
}

static bool repr_value(jx *x, jv v, jtext *out) {
    char text[40];
    switch (v.kind) {
    case J_UNDEFINED:
        return jtext_puts(x, out, "Undefined");
    case J_NONE:
        return jtext_puts(x, out, "None");
    case J_BOOL:
        return jtext_puts(x, out, v.b ? "True" : "False");
    case J_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.i);
        return jtext_puts(x, out, text);
    case J_LONG:
        return jtext_add(x, out, v.s->data, v.s->len);
    case J_FLOAT:
        jv_float_repr(v.f, text);
        return jtext_puts(x, out, text);
    case J_STR:
        return v.markup ? jtext_puts(x, out, "Markup(") && repr_string(x, v.s, out) && jtext_puts(x, out, ")")
                        : repr_string(x, v.s, out);
    case J_LIST:
        return repr_list(x, "[", v.list, "]", out);
    case J_TUPLE:
        return repr_list(x, "(", v.list, v.list->n == 1 ? ",)" : ")", out);
    case J_VIEW:
        snprintf(text, sizeof text, "%s([", v.list->type);
        return repr_list(x, text, v.list, "])", out);
    case J_DICT:
        return repr_dict(x, v.dict, out);
    case J_NAMESPACE:
        return jtext_puts(x, out, "<Namespace ") && repr_dict(x, v.dict, out) && jtext_puts(x, out, ">");
    case J_MACRO: {
        const jstr *name = x->template->symbols[v.macro->node->symbol];
        return jtext_puts(x, out, "<Macro ") && repr_string(x, name, out) && jtext_puts(x, out, ">");
    }
    default:
        return repr_object(x, v, out);
    }
}

bool jv_repr(jx *x, jv v, jtext *out) {
    if (!jx_enter(x))
        return false;
    bool ok = repr_value(x, v, out);
    jx_leave(x);
    return ok;
}

bool jv_write(jx *x, jv v, jtext *out) {
    if (v.kind == J_STR)
        return jtext_add(x, out, v.s->data, v.s->len);
    return v.kind == J_UNDEFINED || v.kind == J_MISSING || jv_repr(x, v, out);
}

bool jv_to_str(jx *x, jv v, jv *out) {
    jtext text = {0};
    if (v.kind == J_STR)
        return jv_give(out, v);
    return jv_write(x, v, &text) && jv_text(x, &text, out);
}
