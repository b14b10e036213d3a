/* coordinator/serving/jinja/operators.c - the truth, equality, order and membership of values, and access to their
 * items. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/chars.h"
#include "coordinator/serving/jinja/value.h"

const char *jv_type(jv v) {
    static const char *const names[] = {[J_MISSING] = "missing",
                                        [J_UNDEFINED] = "Undefined",
                                        [J_NONE] = "NoneType",
                                        [J_BOOL] = "bool",
                                        [J_INT] = "int",
                                        [J_LONG] = "int",
                                        [J_FLOAT] = "float",
                                        [J_STR] = "str",
                                        [J_LIST] = "list",
                                        [J_TUPLE] = "tuple",
                                        [J_DICT] = "dict",
                                        [J_ITER] = "",
                                        [J_VIEW] = "",
                                        [J_RANGE] = "range",
                                        [J_NAMESPACE] = "Namespace",
                                        [J_MACRO] = "Macro",
                                        [J_LOOP] = "LoopContext",
                                        [J_FUNCTION] = "function",
                                        [J_CYCLER] = "Cycler",
                                        [J_JOINER] = "Joiner"};
    if (v.kind == J_ITER || v.kind == J_VIEW)
        return v.list->type;
    return v.markup ? "Markup" : names[v.kind];
}

bool jv_truth(jv v) {
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.b;
    case J_INT:
        return v.i != 0;
    case J_FLOAT:
        return v.f != 0;
    case J_STR:
        return v.s->len > 0;
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        return v.list->n > 0;
    case J_DICT:
        return v.dict->n > 0;
    case J_RANGE:
        return v.range->n > 0;
    default:
        return true;
    }
}

double jv_long_number(jv v) {
    return strtod(v.s->data, NULL); /* the digits end with the text that JSON gave */
}

bool jv_as_int(jx *x, jv v, const char *what, int64_t *out) {
    if (v.kind == J_UNDEFINED)
        return jx_fail(x, MR_E_INVALID, "%.*s", (int)v.s->len, v.s->data);
    if (v.kind != J_INT && v.kind != J_BOOL)
        return jx_fail(x, MR_E_INVALID, "%s must be an integer, not '%s'", what, jv_type(v));
    *out = v.kind == J_INT ? v.i : v.b;
    return true;
}

bool jv_as_str(jx *x, jv v, const char *what, jstr **out) {
    if (v.kind == J_UNDEFINED)
        return jx_fail(x, MR_E_INVALID, "%.*s", (int)v.s->len, v.s->data);
    if (v.kind != J_STR)
        return jx_fail(x, MR_E_INVALID, "%s must be a string, not '%s'", what, jv_type(v));
    *out = v.s;
    return true;
}

static bool equal_lists(jx *x, const jlist *a, const jlist *b, bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++)
        if (!jv_equal(x, a->items[i], b->items[i], out))
            return false;
    return true;
}

static bool equal_dicts(jx *x, const jdict *a, const jdict *b, bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        const jentry *other = jdict_find(x, b, a->entries[i].key);
        *out = other != NULL;
        if (x->status != MR_OK || (other && !jv_equal(x, a->entries[i].value, other->value, out)))
            return false;
    }
    return true;
}

/* Two integers are compared as integers, because a double cannot hold every 64-bit integer exactly. */
static int compare_numbers(jv a, jv b) {
    if (a.kind != J_FLOAT && b.kind != J_FLOAT) {
        int64_t i = a.kind == J_INT ? a.i : a.b, j = b.kind == J_INT ? b.i : b.b;
        return (i > j) - (i < j);
    }
    double f = jv_number(a), g = jv_number(b);
    return f != f || g != g ? 2 : (f > g) - (f < g);
}

static bool same_range(const jrange *a, const jrange *b) {
    return a->n == b->n && (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

bool jv_equal(jx *x, jv a, jv b, bool *out) {
    if (jv_is_number(a) && jv_is_number(b)) {
        *out = compare_numbers(a, b) == 0;
        return jx_work(x, 0);
    }
    *out = false;
    if (a.kind != b.kind)
        return jx_work(x, 0);
    bool ok = true;
    switch (a.kind) {
    case J_UNDEFINED:
    case J_NONE:
        *out = true;
        break;
    case J_STR:
    case J_LONG:
        *out = mr_str_equal((mr_str){a.s->data, a.s->len}, (mr_str){b.s->data, b.s->len});
        return jx_work(x, a.s->len == b.s->len ? a.s->len : 0);
    case J_LIST:
    case J_TUPLE:
        if (!jx_enter(x))
            return false;
        ok = a.list == b.list ? (*out = true) : equal_lists(x, a.list, b.list, out);
        jx_leave(x);
        break;
    case J_DICT:
        if (!jx_enter(x))
            return false;
        ok = a.dict == b.dict ? (*out = true) : equal_dicts(x, a.dict, b.dict, out);
        jx_leave(x);
        break;
    case J_RANGE:
        *out = same_range(a.range, b.range);
        break;
    default:
        *out = a.list == b.list; /* the same object */
    }
    return ok && jx_work(x, 0);
}

bool jv_compare(jx *x, jv a, jv b, int *out) {
    a = a.kind == J_LONG ? jv_float(jv_long_number(a)) : a;
    b = b.kind == J_LONG ? jv_float(jv_long_number(b)) : b;
    if (jv_is_number(a) && jv_is_number(b)) {
        *out = compare_numbers(a, b);
        return jx_work(x, 0);
    }
    if (a.kind == J_STR && b.kind == J_STR) { /* the byte order of UTF-8 is the order of the code points */
        int order = mr_str_compare((mr_str){a.s->data, a.s->len}, (mr_str){b.s->data, b.s->len});
        *out = (order > 0) - (order < 0);
        return jx_work(x, a.s->len);
    }
    jv bad = a.kind == J_UNDEFINED ? a : b;
    if (bad.kind == J_UNDEFINED)
        return jx_fail(x, MR_E_INVALID, "%.*s", (int)bad.s->len, bad.s->data);
    if (a.kind != b.kind || (a.kind != J_LIST && a.kind != J_TUPLE))
        return jx_fail(x, MR_E_INVALID, "'%s' and '%s' have no order", jv_type(a), jv_type(b));
    if (!jx_enter(x))
        return false;
    size_t n = a.list->n < b.list->n ? a.list->n : b.list->n;
    for (size_t i = 0; i < n; i++) {
        bool same;
        if (!jv_equal(x, a.list->items[i], b.list->items[i], &same))
            return false;
        if (!same) {
            bool ok = jv_compare(x, a.list->items[i], b.list->items[i], out);
            jx_leave(x);
            return ok;
        }
    }
    *out = (a.list->n > b.list->n) - (a.list->n < b.list->n);
    jx_leave(x);
    return jx_work(x, 0);
}

/* Merges two sorted runs of `from`, [start, mid) and [mid, end), into `to`. */
static bool merge(jx *x, const jentry *from, jentry *to, const size_t run[3], bool reverse) {
    size_t i = run[0], j = run[1];
    for (size_t k = run[0]; k < run[2]; k++) {
        int order = 0;
        if (i < run[1] && j < run[2] && !jv_compare(x, from[i].key, from[j].key, &order))
            return false;
        bool left = i < run[1] && (j >= run[2] || order == 2 || (reverse ? order >= 0 : order <= 0));
        to[k] = left ? from[i++] : from[j++];
    }
    return true;
}

bool jentries_sort(jx *x, jentry *entries, size_t n, bool reverse) {
    jentry *spare = jx_alloc(x, n, sizeof *spare), *from = entries, *to = spare;
    if (!spare)
        return false;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t start = 0; start < n; start += 2 * width) {
            size_t mid = start + width < n ? start + width : n;
            const size_t run[3] = {start, mid, mid + width < n ? mid + width : n};
            if (!merge(x, from, to, run, reverse))
                return false;
        }
        jentry *swap = from;
        from = to;
        to = swap;
    }
    if (from != entries)
        memcpy(entries, from, n * sizeof *entries);
    return true;
}

bool jv_contains(jx *x, jv item, jv in, bool *out) {
    *out = false;
    if (in.kind == J_STR) {
        jstr *part;
        if (!jv_as_str(x, item, "what is looked for in a string", &part))
            return false;
        *out = !part->len || memmem(in.s->data, in.s->len, part->data, part->len) != NULL;
        return jx_work(x, in.s->len);
    }
    if (in.kind == J_DICT) {
        *out = jdict_find(x, in.dict, item) != NULL;
        return x->status == MR_OK;
    }
    jlist *items;
    if (!jv_items(x, in, &items))
        return false;
    for (size_t i = 0; i < items->n && !*out; i++)
        if (!jv_equal(x, items->items[i], item, out))
            return false;
    return true;
}

bool jv_holds(jx *x, char op, jv a, jv b, bool *out) {
    int order;
    bool ok;
    switch (op) {
    case '=':
        return jv_equal(x, a, b, out);
    case '!':
        ok = jv_equal(x, a, b, out);
        *out = !*out;
        return ok;
    case 'i':
        return jv_contains(x, a, b, out);
    case 'n':
        ok = jv_contains(x, a, b, out);
        *out = !*out;
        return ok;
    }
    if (!jv_compare(x, a, b, &order))
        return false;
    *out = order != 2 && (op == '<' ? order < 0 : op == '>' ? order > 0 : op == 'l' ? order <= 0 : order >= 0);
    return true;
}

bool jv_length(jx *x, jv v, int64_t *out) {
    switch (v.kind) {
    case J_UNDEFINED:
        *out = 0;
        return true;
    case J_STR:
        *out = jstr_chars(v.s);
        return jx_work(x, v.s->len);
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        *out = (int64_t)v.list->n;
        return true;
    case J_DICT:
        *out = (int64_t)v.dict->n;
        return true;
    case J_RANGE:
        *out = v.range->n;
        return true;
    default:
        return jx_fail(x, MR_E_INVALID, "object of type '%s' has no length", jv_type(v));
    }
}

bool jv_is_iterable(jv v) {
    return v.kind == J_UNDEFINED || v.kind == J_STR || v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_DICT ||
           v.kind == J_ITER || v.kind == J_VIEW || v.kind == J_RANGE || v.kind == J_LOOP;
}

static bool string_items(jx *x, const jstr *s, jlist *list) {
    for (size_t i = 0, n; i < s->len; i += n) {
        jv c;
        char_decode(s->data + i, s->len - i, &n);
        if (!jv_str(x, s->data + i, n, &c) || !jlist_push(x, list, c))
            return false;
    }
    return true;
}

bool jv_items(jx *x, jv v, jlist **out) {
    if (v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_VIEW) {
        *out = v.list;
        return true;
    }
    if (!jv_is_iterable(v))
        return jx_fail(x, MR_E_INVALID, "'%s' object is not iterable", jv_type(v));
    jlist *list = jlist_new(x, 0);
    bool ok = list != NULL;
    if (ok && v.kind == J_STR) {
        ok = string_items(x, v.s, list);
    } else if (ok && v.kind == J_DICT) {
        for (size_t i = 0; ok && i < v.dict->n; i++)
            ok = jlist_push(x, list, v.dict->entries[i].key);
    } else if (ok && v.kind == J_RANGE) {
        for (int64_t i = 0; ok && i < v.range->n; i++)
            ok = jlist_push(x, list, jv_int(v.range->start + i * v.range->step));
    } else if (ok && v.kind == J_ITER) { /* the caller takes all items: the generator is empty afterwards */
        list->n = list->cap = v.list->n - v.list->next;
        list->items = list->n ? v.list->items + v.list->next : NULL;
        v.list->next = v.list->n;
    }
    *out = list;
    return ok;
}
