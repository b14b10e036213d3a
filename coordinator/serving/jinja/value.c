/* coordinator/serving/jinja/value.c - creates strings, lists and dicts in the arena of a render, and counts the steps,
 * the depth and the memory that a render may use. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/value.h"

#include <stdio.h>

#include "coordinator/serving/jinja/chars.h"

/* ---- context ---- */

void jx_fail_text(jx *x, mr_status status, const char *fmt, ...) {
    char text[MR_ERR_TEXT_BYTES];
    if (x->status != MR_OK)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    x->status = mr_err_set(x->err, status, "template line %d: %s", (int)x->line, text);
}

bool jx_work(jx *x, size_t n) {
    uint64_t steps = 1 + n / 8;
    if (steps > x->steps_left)
        return jx_fail(x, MR_E_TOO_LONG, "it takes more steps than it may");
    x->steps_left -= steps;
    return true;
}

bool jx_enter(jx *x) {
    if (x->depth_left <= 0)
        return jx_fail(x, MR_E_TOO_LONG, "it is nested too deeply");
    x->depth_left--;
    return true;
}

void *jx_alloc(jx *x, size_t n, size_t item_bytes) {
    void *p = mr_arena_alloc_array(x->arena, n, item_bytes);
    if (!p)
        jx_no_memory(x);
    return p;
}

/* ---- text ---- */

bool jtext_add(jx *x, jtext *t, const char *data, size_t n) {
    if (t->len + n > x->max_output_bytes && x->max_output_bytes)
        return jx_fail(x, MR_E_TOO_LONG, "a text is longer than %zu bytes", x->max_output_bytes);
    if (n > t->cap - t->len) {
        size_t cap = t->cap < 64 ? 64 : t->cap;
        while (cap - t->len < n) {
            if (cap > SIZE_MAX / 4)
                return jx_no_memory(x);
            cap *= 2;
        }
        char *grown = mr_arena_alloc_aligned(x->arena, cap, 1);
        if (!grown)
            return jx_no_memory(x);
        if (t->len)
            memcpy(grown, t->data, t->len);
        t->data = grown;
        t->cap = cap;
    }
    if (n)
        memcpy(t->data + t->len, data, n);
    t->len += n;
    return jx_work(x, n);
}

bool jtext_puts(jx *x, jtext *t, const char *s) {
    return jtext_add(x, t, s, strlen(s));
}

bool jtext_char(jx *x, jtext *t, uint32_t c) {
    char text[4];
    return jtext_add(x, t, text, char_encode(c, text));
}

/* ---- strings ---- */

bool jv_str(jx *x, const char *data, size_t n, jv *out) {
    jstr *s = jx_alloc(x, 1, sizeof *s);
    if (!s)
        return false;
    *s = (jstr){data, n, -1};
    if (!x->template)
        jstr_chars(s); /* count now: many threads read a constant, so it must not change later */
    return jv_give(out, (jv){.kind = J_STR, .s = s});
}

bool jv_str_copy(jx *x, const char *data, size_t n, jv *out) {
    char *copy = mr_arena_alloc_aligned(x->arena, n, 1);
    if (!copy)
        return jx_no_memory(x);
    if (n)
        memcpy(copy, data, n);
    return jx_work(x, n) && jv_str(x, copy, n, out);
}

bool jv_text(jx *x, const jtext *t, jv *out) {
    return jv_str(x, t->data ? t->data : "", t->len, out);
}

bool jv_undefined(jx *x, jv *out, const char *fmt, ...) {
    char text[160];
    jv says;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!jv_str_copy(x, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1, &says))
        return false;
    return jv_give(out, (jv){.kind = J_UNDEFINED, .s = says.s});
}

/* Counts the characters: all bytes except continuation bytes of UTF-8. */
int64_t jstr_chars(jstr *s) {
    if (s->n_chars >= 0)
        return s->n_chars;
    int64_t n = 0;
    for (size_t i = 0; i < s->len; i++)
        n += ((unsigned char)s->data[i] & 0xC0) != 0x80;
    s->n_chars = n;
    return n;
}

size_t jstr_offset(jstr *s, int64_t char_idx) {
    int64_t n = jstr_chars(s);
    if (char_idx <= 0)
        return 0;
    if (char_idx >= n)
        return s->len;
    if (n == (int64_t)s->len)
        return (size_t)char_idx;
    size_t i = 0;
    for (int64_t left = char_idx; i < s->len; i++)
        if (((unsigned char)s->data[i] & 0xC0) != 0x80 && left-- == 0)
            break;
    return i;
}

/* ---- lists ---- */

jlist *jlist_new(jx *x, size_t cap) {
    jlist *list = jx_alloc(x, 1, sizeof *list);
    if (!list)
        return NULL;
    list->cap = cap;
    list->items = cap ? jx_alloc(x, cap, sizeof *list->items) : NULL;
    return cap && !list->items ? NULL : list;
}

bool jlist_push(jx *x, jlist *list, jv item) {
    if (list->n == list->cap) {
        size_t cap = list->cap < 4 ? 8 : 2 * list->cap;
        jv *items = jx_alloc(x, cap, sizeof *items);
        if (!items)
            return false;
        if (list->n)
            memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n++] = item;
    return jx_work(x, 0);
}

bool jlist_push_pair(jx *x, jlist *list, jv a, jv b) {
    jlist *pair = jlist_new(x, 2);
    if (!pair)
        return false;
    pair->items[0] = a;
    pair->items[1] = b;
    pair->n = 2;
    return jlist_push(x, list, jv_list(J_TUPLE, pair));
}

void jlist_reverse(jlist *list) {
    for (size_t i = 0, j = list->n; i + 1 < j; i++) {
        jv swap = list->items[i];
        list->items[i] = list->items[--j];
        list->items[j] = swap;
    }
}

/* ---- dicts ---- */

static uint64_t hash_bytes(const void *data, size_t n, uint64_t seed) {
    const unsigned char *p = data;
    uint64_t h = 14695981039346656037u ^ seed;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* Equal keys have equal hashes, also 1, 1.0 and True. */
static bool hash(jx *x, jv v, uint64_t *out) {
    if (!jx_work(x, v.kind == J_STR ? v.s->len : 0))
        return false;
    switch (v.kind) {
    case J_STR:
        *out = hash_bytes(v.s->data, v.s->len, 0);
        return true;
    case J_NONE:
        *out = 1;
        return true;
    case J_BOOL:
    case J_INT:
    case J_FLOAT: {
        double d = jv_number(v);
        d = d == 0 ? 0 : d;
        *out = hash_bytes(&d, sizeof d, 2);
        return true;
    }
    case J_TUPLE:
        *out = 3;
        if (!jx_enter(x))
            return false;
        for (size_t i = 0; i < v.list->n; i++) {
            uint64_t item;
            if (!hash(x, v.list->items[i], &item))
                return false;
            *out = *out * 1000003 ^ item;
        }
        jx_leave(x);
        return true;
    case J_LIST:
    case J_DICT:
    case J_VIEW:
        return jx_fail(x, MR_E_INVALID, "unhashable type: '%s'", jv_type(v));
    default: /* undefined values are equal to each other; values of other kinds are compared by identity */
        *out = v.kind;
        return true;
    }
}

jdict *jdict_new(jx *x, size_t cap) {
    jdict *d = jx_alloc(x, 1, sizeof *d);
    if (!d)
        return NULL;
    d->cap = cap;
    d->entries = cap ? jx_alloc(x, cap, sizeof *d->entries) : NULL;
    return cap && !d->entries ? NULL : d;
}

static jentry *find(jx *x, const jdict *d, jv key, uint64_t h) {
    if (!jx_work(x, d->n))
        return NULL;
    for (size_t i = 0; i < d->n; i++) {
        bool same = false;
        if (d->entries[i].hash == h && !jv_equal(x, d->entries[i].key, key, &same))
            return NULL;
        if (same)
            return &d->entries[i];
    }
    return NULL;
}

jentry *jdict_find(jx *x, const jdict *d, jv key) {
    uint64_t h;
    return hash(x, key, &h) ? find(x, d, key, h) : NULL;
}

jentry *jdict_find_str(jx *x, const jdict *d, const char *key, size_t n) {
    jstr s = {key, n, -1};
    return jdict_find(x, d, (jv){.kind = J_STR, .s = &s});
}

static bool append(jx *x, jdict *d, jv key, jv value, uint64_t h) {
    if (d->n == d->cap) {
        size_t cap = d->cap < 4 ? 8 : 2 * d->cap;
        jentry *entries = jx_alloc(x, cap, sizeof *entries);
        if (!entries)
            return false;
        if (d->n)
            memcpy(entries, d->entries, d->n * sizeof *entries);
        d->entries = entries;
        d->cap = cap;
    }
    d->entries[d->n++] = (jentry){h, key, value};
    return true;
}

bool jdict_append(jx *x, jdict *d, jv key, jv value) {
    uint64_t h;
    return hash(x, key, &h) && append(x, d, key, value, h);
}

bool jdict_set(jx *x, jdict *d, jv key, jv value) {
    uint64_t h;
    if (!hash(x, key, &h))
        return false;
    jentry *entry = find(x, d, key, h);
    if (entry)
        entry->value = value;
    return entry ? true : x->status == MR_OK && append(x, d, key, value, h);
}

bool jdict_remove(jx *x, jdict *d, jentry *entry) {
    size_t i = (size_t)(entry - d->entries);
    memmove(entry, entry + 1, (--d->n - i) * sizeof *entry);
    return jx_work(x, d->n);
}
