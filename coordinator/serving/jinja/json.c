/* coordinator/serving/jinja/json.c - turns JSON into values of the template language, and values into JSON as Python's
 * json.dumps does. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>

#include "coordinator/serving/jinja/chars.h"
#include "coordinator/serving/jinja/value.h"
#include "coordinator/serving/json/json.h"

static bool from_array(jx *x, const json_t *json, jv *out) {
    size_t n = json_array_size(json);
    jlist *list = jlist_new(x, n);
    for (size_t i = 0; list && i < n; i++) {
        jv item;
        if (!jv_from_json(x, json_array_get(json, i), &item) || !jlist_push(x, list, item))
            return false;
    }
    *out = jv_list(J_LIST, list);
    return list != NULL;
}

/* The keys of a JSON object are unique, so entries are appended without a lookup. */
static bool from_object(jx *x, const json_t *json, jv *out) {
    json_t *object = (json_t *)(uintptr_t)json; /* jansson 2.14 iterates over non-const objects only; it only reads */
    size_t n = json_object_size(json);
    jdict *d = jdict_new(x, n);
    if (!d)
        return false;
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        jv key, value;
        const char *name = json_object_iter_key(it);
        if (!jv_str(x, name, strlen(name), &key) || !jv_from_json(x, json_object_iter_value(it), &value) ||
            !jdict_append(x, d, key, value))
            return false;
    }
    return jv_give(out, (jv){.kind = J_DICT, .dict = d});
}

static bool from_json(jx *x, const json_t *json, jv *out) {
    const char *digits = mr_json_digits(json);
    if (digits) {
        bool ok = jv_str(x, digits, strlen(digits), out);
        out->kind = J_LONG;
        return ok;
    }
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return from_object(x, json, out);
    case JSON_ARRAY:
        return from_array(x, json, out);
    case JSON_STRING:
        return jv_str(x, json_string_value(json), json_string_length(json), out);
    case JSON_INTEGER:
        return jv_give(out, jv_int(json_integer_value(json)));
    case JSON_REAL:
        return jv_give(out, jv_float(json_real_value(json)));
    case JSON_TRUE:
    case JSON_FALSE:
        return jv_give(out, jv_bool(json_is_true(json)));
    default:
        return jv_give(out, jv_none());
    }
}

bool jv_from_json(jx *x, const json_t *json, jv *out) {
    if (!jx_enter(x) || !jx_work(x, 0))
        return false;
    bool ok = from_json(x, json, out);
    jx_leave(x);
    return ok;
}

/* ---- json.dumps ---- */

static bool escape_char(jx *x, uint32_t c, jtext *out) {
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    char text[16];
    const char *at = c && c < 0x80 ? strchr(from, (char)c) : NULL;
    if (at)
        snprintf(text, sizeof text, "\\%c", to[at - from]);
    else if (c < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                 (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
    return jtext_puts(x, out, text);
}

static bool write_string(jx *x, const jstr *s, bool ascii, jtext *out) {
    size_t plain = 0;
    if (!jtext_puts(x, out, "\""))
        return false;
    for (size_t i = 0; i < s->len;) {
        unsigned char c = (unsigned char)s->data[i];
        size_t n = 1;
        if (c >= 0x20 && c != '"' && c != '\\' && (!ascii || c < 0x7F)) {
            i++;
            continue;
        }
        uint32_t code = char_decode(s->data + i, s->len - i, &n);
        if (!jtext_add(x, out, s->data + plain, i - plain) || !escape_char(x, code, out))
            return false;
        plain = i += n;
    }
    return jtext_add(x, out, s->data + plain, s->len - plain) && jtext_puts(x, out, "\"");
}

static bool write_float(jx *x, double f, jtext *out) {
    char text[32];
    jv_float_repr(f, text);
    return jtext_puts(x, out, isnan(f) ? "NaN" : isinf(f) ? (f < 0 ? "-Infinity" : "Infinity") : text);
}

static bool new_line(jx *x, const json_style *style, int level, jtext *out) {
    if (!style->has_indent)
        return true;
    bool ok = jtext_puts(x, out, "\n");
    for (int i = 0; ok && i < level; i++)
        ok = jtext_add(x, out, style->indent.s->data, style->indent.s->len);
    return ok;
}

/* Writes what stands before an item: the separator, unless the item is the first, then the line break. */
static bool next_item(jx *x, const json_style *style, bool first, int level, jtext *out) {
    const jstr *separator = style->item_separator;
    return (first || jtext_add(x, out, separator->data, separator->len)) && new_line(x, style, level, out);
}

static bool write_list(jx *x, const jlist *list, const json_style *style, int level, jtext *out) {
    if (!list->n)
        return jtext_puts(x, out, "[]");
    if (!jtext_puts(x, out, "["))
        return false;
    for (size_t i = 0; i < list->n; i++)
        if (!next_item(x, style, i == 0, level + 1, out) || !jv_write_json(x, list->items[i], style, level + 1, out))
            return false;
    return new_line(x, style, level, out) && jtext_puts(x, out, "]");
}

/* Writes a key as a JSON string. Numbers, booleans and None are converted to strings. */
static bool write_key(jx *x, jv key, const json_style *style, jtext *out) {
    jtext text = {0};
    if (key.kind != J_STR) {
        if (!jv_is_number(key) && key.kind != J_LONG && key.kind != J_NONE)
            return jx_fail(x, MR_E_INVALID, "keys must be str, int, float, bool or None, not %s", jv_type(key));
        if (!jv_write_json(x, key, style, 0, &text) || !jv_text(x, &text, &key))
            return false;
    }
    return write_string(x, key.s, style->ascii, out);
}

static bool sorted_entries(jx *x, const jdict *d, jentry **out) {
    *out = jx_alloc(x, d->n, sizeof **out);
    if (!*out)
        return false;
    memcpy(*out, d->entries, d->n * sizeof **out);
    return jentries_sort(x, *out, d->n, false);
}

static bool write_dict(jx *x, const jdict *d, const json_style *style, int level, jtext *out) {
    jentry *entries = d->entries;
    if (!d->n)
        return jtext_puts(x, out, "{}");
    if ((style->sort_keys && !sorted_entries(x, d, &entries)) || !jtext_puts(x, out, "{"))
        return false;
    for (size_t i = 0; i < d->n; i++)
        if (!next_item(x, style, i == 0, level + 1, out) || !write_key(x, entries[i].key, style, out) ||
            !jtext_add(x, out, style->key_separator->data, style->key_separator->len) ||
            !jv_write_json(x, entries[i].value, style, level + 1, out))
            return false;
    return new_line(x, style, level, out) && jtext_puts(x, out, "}");
}

static bool write_json(jx *x, jv v, const json_style *style, int level, jtext *out) {
    char text[32];
    switch (v.kind) {
    case J_NONE:
        return jtext_puts(x, out, "null");
    case J_BOOL:
        return jtext_puts(x, out, v.b ? "true" : "false");
    case J_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.i);
        return jtext_puts(x, out, text);
    case J_LONG:
        return jtext_add(x, out, v.s->data, v.s->len);
    case J_FLOAT:
        return write_float(x, v.f, out);
    case J_STR:
        return write_string(x, v.s, style->ascii, out);
    case J_LIST:
    case J_TUPLE:
        return write_list(x, v.list, style, level, out);
    case J_DICT:
        return write_dict(x, v.dict, style, level, out);
    default:
        return jx_fail(x, MR_E_INVALID, "Object of type %s is not JSON serializable", jv_type(v));
    }
}

bool jv_write_json(jx *x, jv v, const json_style *style, int level, jtext *out) {
    if (!jx_enter(x))
        return false;
    bool ok = write_json(x, v, style, level, out);
    jx_leave(x);
    return ok;
}
