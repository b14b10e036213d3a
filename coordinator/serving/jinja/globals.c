/* coordinator/serving/jinja/globals.c - the functions that every template can call, such as range and dict. */
// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include "coordinator/serving/jinja/value.h"

enum { MAX_RANGE = 100000, MAX_TIME_BYTES = 1024 };

BUILTIN(g_range) {
    int64_t v[3] = {0, 0, 1};
    if (args->n_pos < 1 || args->n_pos > 3 || args->n_named)
        return jx_fail(x, MR_E_INVALID, "range needs 1 to 3 arguments");
    for (size_t i = 0; i < args->n_pos; i++)
        if (!jv_as_int(x, args->pos[i], "an argument of range", &v[args->n_pos == 1 ? 1 : i]))
            return false;
    if (v[2] == 0)
        return jx_fail(x, MR_E_INVALID, "range() arg 3 must not be zero");
    /* Differences may exceed int64_t. */
    uint64_t n = 0, from = (uint64_t)v[0], to = (uint64_t)v[1], step = (uint64_t)v[2];
    if (v[2] > 0 && v[1] > v[0])
        n = (to - from - 1) / step + 1;
    else if (v[2] < 0 && v[0] > v[1])
        n = (from - to - 1) / -step + 1;
    if (n > MAX_RANGE)
        return jx_fail(x, MR_E_INVALID, "range has more than %d items", MAX_RANGE);
    jrange *range = jx_alloc(x, 1, sizeof *range);
    if (!range)
        return false;
    *range = (jrange){v[0], v[1], v[2], (int64_t)n};
    return jv_give(out, (jv){.kind = J_RANGE, .range = range});
}

/* Takes arguments as Python's dict does: dict(mapping or pairs, name=value). Used by dict, dict.update and
 * namespace. */
bool jdict_update(jx *x, jdict *d, const jargs *args) {
    if (args->n_pos > 1)
        return jx_fail(x, MR_E_INVALID, "at most 1 argument without a name is taken");
    if (args->n_pos && args->pos[0].kind == J_DICT) {
        const jdict *from = args->pos[0].dict;
        for (size_t i = 0; i < from->n; i++)
            if (!jdict_set(x, d, from->entries[i].key, from->entries[i].value))
                return false;
    } else if (args->n_pos) {
        jlist *items, *pair;
        if (!jv_items(x, args->pos[0], &items))
            return false;
        for (size_t i = 0; i < items->n; i++) {
            if (!jv_items(x, items->items[i], &pair))
                return false;
            if (pair->n != 2)
                return jx_fail(x, MR_E_INVALID, "an item of a dict must be a pair");
            if (!jdict_set(x, d, pair->items[0], pair->items[1]))
                return false;
        }
    }
    for (size_t i = 0; i < args->n_named; i++)
        if (!jdict_set(x, d, args->names[i], args->named[i]))
            return false;
    return true;
}

BUILTIN(g_dict) {
    jdict *d = jdict_new(x, 0);
    *out = (jv){.kind = J_DICT, .dict = d};
    return d && jdict_update(x, d, args);
}

BUILTIN(g_namespace) {
    jdict *d = jdict_new(x, 0);
    *out = (jv){.kind = J_NAMESPACE, .dict = d};
    return d && jdict_update(x, d, args);
}

BUILTIN(g_raise_exception) {
    jv text;
    if (!jv_to_str(x, a[0], &text))
        return false;
    *out = text;
    return jx_fail(x, MR_E_INVALID, "the template says: %.*s", (int)(text.s->len < 400 ? text.s->len : 400),
                   text.s->data);
}

BUILTIN(g_strftime_now) {
    char format[256], text[MAX_TIME_BYTES];
    jstr *s;
    struct tm tm;
    time_t now = (time_t)x->now_unix_s;
    if (!jv_as_str(x, a[0], "the format of a time", &s))
        return false;
    if (s->len >= sizeof format || !localtime_r(&now, &tm))
        return jx_fail(x, MR_E_INVALID, "the format of a time is too long");
    memcpy(format, s->data, s->len);
    format[s->len] = 0;
    size_t n = strftime(text, sizeof text, format, &tm);
    return jv_str_copy(x, text, n, out);
}

BUILTIN(g_cycler) {
    jcycle *c = jx_alloc(x, 1, sizeof *c);
    if (!c || !(c->items = jlist_new(x, args->n_pos)))
        return false;
    if (!args->n_pos)
        return jx_fail(x, MR_E_INVALID, "at least one item has to be provided");
    for (size_t i = 0; i < args->n_pos; i++)
        if (!jlist_push(x, c->items, args->pos[i]))
            return false;
    return jv_give(out, (jv){.kind = J_CYCLER, .cycle = c});
}

BUILTIN(g_joiner) {
    jv empty, separator = a[0];
    jcycle *c = jx_alloc(x, 1, sizeof *c);
    if (!c || !(c->items = jlist_new(x, 2)) || !jv_str(x, "", 0, &empty) ||
        (separator.kind == J_MISSING && !jv_str(x, ", ", 2, &separator)))
        return false;
    *out = (jv){.kind = J_JOINER, .cycle = c};
    return jlist_push(x, c->items, empty) && jlist_push(x, c->items, separator);
}

const jbuiltin *jglobal_find(const char *name, size_t n) {
    static const jbuiltin table[] = {{"range", NULL, 0, g_range, 0},
                                     {"dict", NULL, 0, g_dict, 0},
                                     {"namespace", NULL, 0, g_namespace, 0},
                                     {"raise_exception", "message", 1, g_raise_exception, 0},
                                     {"strftime_now", "format", 1, g_strftime_now, 0},
                                     {"cycler", NULL, 0, g_cycler, 0},
                                     {"joiner", "sep", 0, g_joiner, 0}};
    return jbuiltin_in(table, sizeof table / sizeof *table, name, n);
}
