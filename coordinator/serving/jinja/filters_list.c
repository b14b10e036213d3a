/* coordinator/serving/jinja/filters_list.c - the filters of values with items: lists, dicts and strings. */
// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <stdlib.h>

#include "coordinator/serving/jinja/value.h"

static bool generator(jx *x, jlist **list, jv *out) {
    *list = jlist_new(x, 0);
    if (!*list)
        return false;
    (*list)->type = "generator";
    return jv_give(out, jv_list(J_ITER, *list));
}

/* ---- attributes by a path such as "a.b.0" ---- */

static bool get_path(jx *x, jv item, const char *path, size_t n, jv *out) {
    for (size_t start = 0; start <= n;) {
        const char *dot = memchr(path + start, '.', n - start);
        size_t len = dot ? (size_t)(dot - path) - start : n - start;
        bool number = len > 0 && len < 10;
        for (size_t i = 0; i < len; i++)
            number &= isdigit((unsigned char)path[start + i]) != 0;
        jv key;
        if (number) {
            int64_t v = 0;
            for (size_t i = 0; i < len; i++)
                v = 10 * v + (path[start + i] - '0');
            key = jv_int(v);
        } else if (!jv_str(x, path + start, len, &key)) {
            return false;
        }
        if (!jv_subscript(x, item, key, &item))
            return false;
        start += len + 1;
    }
    return jv_give(out, item);
}

/* Without an attribute, out is the item itself. */
static bool get_attribute(jx *x, jv item, jv attribute, jv *out) {
    *out = item;
    if (attribute.kind == J_MISSING || attribute.kind == J_NONE)
        return true;
    if (attribute.kind == J_INT)
        return jv_subscript(x, item, attribute, out);
    jstr *path;
    return jv_as_str(x, attribute, "an attribute", &path) && get_path(x, item, path->data, path->len, out);
}

static bool fold(jx *x, bool case_sensitive, jv v, jv *out) {
    *out = v;
    return case_sensitive || v.kind != J_STR || jstr_case(x, v, CASE_LOWER, out);
}

static bool single_key(jx *x, jv item, jv attribute, bool case_sensitive, jv *out) {
    jv v;
    return get_attribute(x, item, attribute, &v) && fold(x, case_sensitive, v, out);
}

/* The sort key of an item: a list of the values of one or several attributes ("a,b"). */
static bool sort_key(jx *x, jv item, jv attribute, bool case_sensitive, jv *out) {
    jv v;
    jlist *keys = jlist_new(x, 0);
    if (!keys)
        return false;
    *out = jv_list(J_LIST, keys);
    if (attribute.kind != J_STR)
        return single_key(x, item, attribute, case_sensitive, &v) && jlist_push(x, keys, v);
    for (size_t start = 0; start <= attribute.s->len;) {
        const char *at = attribute.s->data + start, *comma = memchr(at, ',', attribute.s->len - start);
        size_t n = comma ? (size_t)(comma - at) : attribute.s->len - start;
        if (!get_path(x, item, at, n, &v) || !fold(x, case_sensitive, v, &v) || !jlist_push(x, keys, v))
            return false;
        start += n + 1;
    }
    return true;
}

typedef bool key_fn(jx *x, jv item, jv attribute, bool case_sensitive, jv *out);

static bool keyed(jx *x, const jlist *items, key_fn *key, jv attribute, bool case_sensitive, jentry **out) {
    *out = jx_alloc(x, items->n, sizeof **out);
    for (size_t i = 0; *out && i < items->n; i++) {
        (*out)[i].value = items->items[i];
        if (!key(x, items->items[i], attribute, case_sensitive, &(*out)[i].key))
            return false;
    }
    return *out != NULL;
}

/* ---- order ---- */

BUILTIN(f_sort) {
    jlist *items, *sorted;
    jentry *e;
    if (!jv_items(x, self, &items) || !keyed(x, items, sort_key, a[2], jv_truth(a[1]), &e) ||
        !jentries_sort(x, e, items->n, jv_truth(a[0])) || !(sorted = jlist_new(x, items->n)))
        return false;
    for (size_t i = 0; i < items->n; i++)
        sorted->items[i] = e[i].value;
    sorted->n = items->n;
    return jv_give(out, jv_list(J_LIST, sorted));
}

BUILTIN(f_dictsort) {
    jstr *by = NULL;
    if (self.kind != J_DICT)
        return jx_fail(x, MR_E_INVALID, "'%s' object has no items to sort", jv_type(self));
    if (a[1].kind != J_MISSING && !jv_as_str(x, a[1], "by", &by))
        return false;
    bool by_value = by && jstr_is(by, "value");
    if (by && !by_value && !jstr_is(by, "key"))
        return jx_fail(x, MR_E_INVALID, "You can only sort by either \"key\" or \"value\"");
    size_t n = self.dict->n;
    jentry *e = jx_alloc(x, n, sizeof *e);
    jlist *sorted = jlist_new(x, n);
    for (size_t i = 0; e && i < n; i++) {
        e[i].hash = i;
        if (!fold(x, jv_truth(a[0]), by_value ? self.dict->entries[i].value : self.dict->entries[i].key, &e[i].key))
            return false;
    }
    if (!e || !sorted || !jentries_sort(x, e, n, jv_truth(a[2])))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!jlist_push_pair(x, sorted, self.dict->entries[e[i].hash].key, self.dict->entries[e[i].hash].value))
            return false;
    return jv_give(out, jv_list(J_LIST, sorted));
}

BUILTIN(f_unique) {
    jlist *items, *kept;
    jdict *seen = jdict_new(x, 0);
    if (!seen || !jv_items(x, self, &items) || !generator(x, &kept, out))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        jv key;
        if (!get_attribute(x, items->items[i], a[1], &key) || !fold(x, jv_truth(a[0]), key, &key))
            return false;
        if (jdict_find(x, seen, key))
            continue;
        if (x->status != MR_OK || !jdict_set(x, seen, key, jv_none()) || !jlist_push(x, kept, items->items[i]))
            return false;
    }
    return true;
}

/* min and max. how: -1 for the smallest item, 1 for the largest. */
BUILTIN(f_extreme) {
    jlist *items;
    jentry *e;
    if (!jv_items(x, self, &items) || !keyed(x, items, single_key, a[1], jv_truth(a[0]), &e))
        return false;
    if (!items->n)
        return jv_undefined(x, out, "No aggregated item, sequence was empty.");
    size_t best = 0;
    for (size_t i = 1; i < items->n; i++) {
        int order;
        if (!jv_compare(x, e[i].key, e[best].key, &order))
            return false;
        if (order == how)
            best = i;
    }
    return jv_give(out, e[best].value);
}

BUILTIN(f_groupby) {
    jlist *items, *groups = jlist_new(x, 0), *group = NULL;
    jentry *e;
    if (!groups || !jv_items(x, self, &items) || !keyed(x, items, single_key, a[0], jv_truth(a[2]), &e))
        return false;
    bool has_default = a[1].kind > J_NONE;
    for (size_t i = 0; i < items->n && has_default; i++)
        if (e[i].key.kind == J_UNDEFINED && !fold(x, jv_truth(a[2]), a[1], &e[i].key))
            return false;
    if (!jentries_sort(x, e, items->n, false))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        bool same = false;
        jv name;
        if (i && !jv_equal(x, e[i - 1].key, e[i].key, &same))
            return false;
        if (!same) {
            if (!(group = jlist_new(x, 0)) || !get_attribute(x, e[i].value, a[0], &name))
                return false;
            if (name.kind == J_UNDEFINED && has_default)
                name = a[1];
            if (!jlist_push_pair(x, groups, name, jv_list(J_LIST, group)))
                return false;
        }
        if (!jlist_push(x, group, e[i].value))
            return false;
    }
    return jv_give(out, jv_list(J_LIST, groups));
}

/* ---- choice ---- */

/* The arguments of a call without the first n. */
static jargs rest(const jargs *args, size_t n) {
    jargs r = *args;
    n = n < r.n_pos ? n : r.n_pos;
    r.pos = n ? r.pos + n : r.pos;
    r.n_pos -= n;
    return r;
}

enum { REJECT, CHOOSE, BY_ATTRIBUTE };

/* select, reject, selectattr and rejectattr. With by_attribute, the first argument names an attribute. The next
 * argument names a test. Without a test, an item counts by its truth. */
BUILTIN(f_choose) {
    bool by_attribute = how & BY_ATTRIBUTE, wanted = how & CHOOSE;
    jlist *items, *kept;
    const jbuiltin *test = NULL;
    size_t at = by_attribute;
    if (!jv_truth(self)) /* None as well; its arguments are not looked at */
        return generator(x, &kept, out);
    if (args->n_pos < at)
        return jx_fail(x, MR_E_INVALID, "missing parameter for attribute name");
    if (args->n_pos > at) {
        jstr *name;
        if (!jv_as_str(x, args->pos[at], "the name of a test", &name))
            return false;
        if (!(test = jtest_find(name->data, name->len)))
            return jx_fail(x, MR_E_INVALID, "no test named '%.*s'", (int)(name->len < 60 ? name->len : 60), name->data);
    }
    jargs more = rest(args, at + 1);
    if (!jv_items(x, self, &items) || !generator(x, &kept, out))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        jv v = items->items[i], yes;
        if (by_attribute && !get_attribute(x, v, args->pos[0], &v))
            return false;
        yes = jv_bool(jv_truth(v));
        if (test && !jbuiltin_call(x, test, v, &more, &yes))
            return false;
        if (jv_truth(yes) == wanted && !jlist_push(x, kept, items->items[i]))
            return false;
    }
    return true;
}

/* map(filter, arguments of the filter) or map(attribute="name", default=value). */
BUILTIN(f_map) {
    jlist *items, *mapped;
    jv attribute = {0}, otherwise = {0};
    const jbuiltin *filter = NULL;
    jstr *name;
    if (!jv_truth(self)) /* None as well; its arguments are not looked at */
        return generator(x, &mapped, out);
    for (size_t i = 0; !args->n_pos && i < args->n_named; i++) {
        if (jstr_is(args->names[i].s, "attribute"))
            attribute = args->named[i];
        else if (jstr_is(args->names[i].s, "default"))
            otherwise = args->named[i];
        else
            return jx_fail(x, MR_E_INVALID, "unexpected keyword argument of map");
    }
    if (attribute.kind == J_MISSING) {
        if (!args->n_pos)
            return jx_fail(x, MR_E_INVALID, "map requires a filter argument");
        if (!jv_as_str(x, args->pos[0], "the name of a filter", &name))
            return false;
        if (!(filter = jfilter_find(name->data, name->len)))
            return jx_fail(x, MR_E_INVALID, "no filter named '%.*s'", (int)(name->len < 60 ? name->len : 60),
                           name->data);
    }
    jargs more = rest(args, 1);
    if (!jv_items(x, self, &items) || !generator(x, &mapped, out))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        jv v = items->items[i];
        if (filter ? !jbuiltin_call(x, filter, v, &more, &v) : !get_attribute(x, v, attribute, &v))
            return false;
        if (v.kind == J_UNDEFINED && otherwise.kind != J_MISSING && !filter)
            v = otherwise;
        if (!jlist_push(x, mapped, v))
            return false;
    }
    return true;
}

/* ---- shape ---- */

BUILTIN(f_list) {
    jlist *items, *copy;
    if (!jv_items(x, self, &items) || !(copy = jlist_new(x, items->n)))
        return false;
    if (items->n)
        memcpy(copy->items, items->items, items->n * sizeof *copy->items);
    copy->n = items->n;
    *out = jv_list(J_LIST, copy);
    return jx_work(x, copy->n);
}

BUILTIN(f_first) {
    jlist *items;
    if (!jv_items(x, self, &items))
        return false;
    if (!items->n)
        return jv_undefined(x, out, "No first item, sequence was empty.");
    return jv_give(out, items->items[0]);
}

BUILTIN(f_last) {
    jlist *items;
    if (self.kind == J_ITER)
        return jx_fail(x, MR_E_INVALID, "'%s' object is not reversible", jv_type(self));
    if (!jv_items(x, self, &items))
        return false;
    if (!items->n)
        return jv_undefined(x, out, "No last item, sequence was empty.");
    return jv_give(out, items->items[items->n - 1]);
}

BUILTIN(f_join) {
    jlist *items, *values;
    jv separator = a[0];
    if ((separator.kind == J_MISSING ? !jv_str(x, "", 0, &separator) : !jv_to_str(x, separator, &separator)) ||
        !jv_items(x, self, &items) || !(values = jlist_new(x, items->n)))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        jv v;
        if (!get_attribute(x, items->items[i], a[1], &v) || !jlist_push(x, values, v))
            return false;
    }
    separator.markup = false;
    return jstr_join(x, separator, values, false, out);
}

BUILTIN(f_reverse) {
    jlist *items, *reversed;
    if (self.kind == J_ITER)
        return jx_fail(x, MR_E_INVALID, "argument must be iterable");
    if (!jv_items(x, self, &items) || !generator(x, &reversed, out))
        return false;
    for (size_t i = items->n; i-- > 0;)
        if (!jlist_push(x, reversed, items->items[i]))
            return false;
    if (self.kind != J_STR)
        return true;
    jv empty;
    return jv_str(x, "", 0, &empty) && jstr_join(x, empty, reversed, false, out);
}

BUILTIN(f_items) {
    jlist *pairs;
    if (!generator(x, &pairs, out))
        return false;
    if (self.kind == J_UNDEFINED)
        return true;
    if (self.kind != J_DICT)
        return jx_fail(x, MR_E_INVALID, "can only get item pairs from a mapping");
    for (size_t i = 0; i < self.dict->n; i++)
        if (!jlist_push_pair(x, pairs, self.dict->entries[i].key, self.dict->entries[i].value))
            return false;
    return true;
}

BUILTIN(f_sum) {
    jlist *items;
    *out = a[1].kind == J_MISSING ? jv_int(0) : a[1];
    if (!jv_items(x, self, &items))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        jv v;
        if (!get_attribute(x, items->items[i], a[0], &v) || !jv_arithmetic(x, '+', *out, v, out))
            return false;
    }
    return true;
}

BUILTIN(f_batch) {
    jlist *items, *batches, *batch = NULL;
    int64_t size;
    if (!jv_as_int(x, a[0], "linecount", &size) || !jv_items(x, self, &items) || !generator(x, &batches, out))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        if ((!batch || (int64_t)batch->n == size) &&
            (!(batch = jlist_new(x, 0)) || !jlist_push(x, batches, jv_list(J_LIST, batch))))
            return false;
        if (!jlist_push(x, batch, items->items[i]))
            return false;
    }
    while (batch && a[1].kind > J_NONE && (int64_t)batch->n < size)
        if (!jlist_push(x, batch, a[1]))
            return false;
    return true;
}

/* Splits the items into columns. If the items cannot be split evenly, the first columns have one item more. */
BUILTIN(f_slice) {
    jlist *items, *columns;
    int64_t n_columns;
    if (!jv_as_int(x, a[0], "slices", &n_columns) || !jv_items(x, self, &items) || !generator(x, &columns, out))
        return false;
    if (n_columns <= 0)
        return jx_fail(x, MR_E_INVALID, "slices must be positive");
    int64_t each = (int64_t)items->n / n_columns, more = (int64_t)items->n % n_columns, at = 0;
    for (int64_t i = 0; i < n_columns; i++) {
        jlist *column = jlist_new(x, 0);
        if (!column || !jlist_push(x, columns, jv_list(J_LIST, column)))
            return false;
        for (int64_t end = at + each + (i < more); at < end; at++)
            if (!jlist_push(x, column, items->items[at]))
                return false;
        if (a[1].kind > J_NONE && i >= more && !jlist_push(x, column, a[1]))
            return false;
    }
    return true;
}

const jbuiltin *jfilter_list_find(const char *name, size_t n) {
    static const jbuiltin table[] = {{"sort", "reverse case_sensitive attribute", 0, f_sort, 0},
                                     {"dictsort", "case_sensitive by reverse", 0, f_dictsort, 0},
                                     {"unique", "case_sensitive attribute", 0, f_unique, 0},
                                     {"min", "case_sensitive attribute", 0, f_extreme, -1},
                                     {"max", "case_sensitive attribute", 0, f_extreme, 1},
                                     {"groupby", "attribute default case_sensitive", 1, f_groupby, 0},
                                     {"select", NULL, 0, f_choose, CHOOSE},
                                     {"reject", NULL, 0, f_choose, REJECT},
                                     {"selectattr", NULL, 0, f_choose, BY_ATTRIBUTE | CHOOSE},
                                     {"rejectattr", NULL, 0, f_choose, BY_ATTRIBUTE | REJECT},
                                     {"map", NULL, 0, f_map, 0},
                                     {"list", "", 0, f_list, 0},
                                     {"first", "", 0, f_first, 0},
                                     {"last", "", 0, f_last, 0},
                                     {"join", "d attribute", 0, f_join, 0},
                                     {"reverse", "", 0, f_reverse, 0},
                                     {"items", "", 0, f_items, 0},
                                     {"sum", "attribute start", 0, f_sum, 0},
                                     {"batch", "linecount fill_with", 1, f_batch, 0},
                                     {"slice", "slices fill_with", 1, f_slice, 0}};
    return jbuiltin_in(table, sizeof table / sizeof *table, name, n);
}
