/* coordinator/serving/jinja/methods.c - the methods of lists, tuples, dicts, cyclers and loops. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/interp.h"

static bool done(jv *out) {
    return jv_give(out, jv_none());
}

/* ---- lists and tuples ---- */

BUILTIN(l_append) {
    return jlist_push(x, self.list, a[0]) && done(out);
}

static bool remove_at(jx *x, jlist *list, size_t at) {
    memmove(&list->items[at], &list->items[at + 1], (--list->n - at) * sizeof *list->items);
    return jx_work(x, list->n);
}

BUILTIN(l_pop) {
    int64_t at = -1, n = (int64_t)self.list->n;
    if (a[0].kind != J_MISSING && !jv_as_int(x, a[0], "the index", &at))
        return false;
    at += at < 0 ? n : 0;
    if (at < 0 || at >= n)
        return jx_fail(x, MR_E_INVALID, n ? "pop index out of range" : "pop from empty list");
    *out = self.list->items[at];
    return remove_at(x, self.list, (size_t)at);
}

BUILTIN(l_insert) {
    int64_t at, n = (int64_t)self.list->n;
    if (!jv_as_int(x, a[0], "the index", &at) || !jlist_push(x, self.list, a[1]))
        return false;
    at += at < 0 ? n : 0;
    at = at < 0 ? 0 : at > n ? n : at;
    memmove(&self.list->items[at + 1], &self.list->items[at], (size_t)(n - at) * sizeof a[1]);
    self.list->items[at] = a[1];
    return jx_work(x, (size_t)n) && done(out);
}

BUILTIN(l_extend) {
    jlist *items;
    if (!jv_items(x, a[0], &items))
        return false;
    for (size_t i = 0, n = items->n; i < n; i++) /* n is read once: items may be the list that grows here */
        if (!jlist_push(x, self.list, items->items[i]))
            return false;
    return done(out);
}

static bool index_of(jx *x, const jlist *list, jv item, size_t *out) {
    bool same = false;
    for (size_t i = 0; i < list->n; i++) {
        if (!jv_equal(x, list->items[i], item, &same))
            return false;
        if (same) {
            *out = i;
            return true;
        }
    }
    return jx_fail(x, MR_E_INVALID, "the item is not in the list");
}

BUILTIN(l_index) {
    size_t at = 0;
    bool ok = index_of(x, self.list, a[0], &at);
    *out = jv_int((int64_t)at);
    return ok;
}

BUILTIN(l_remove) {
    size_t at;
    return index_of(x, self.list, a[0], &at) && remove_at(x, self.list, at) && done(out);
}

BUILTIN(l_count) {
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n; i++) {
        bool same;
        if (!jv_equal(x, self.list->items[i], a[0], &same))
            return false;
        n += same;
    }
    return jv_give(out, jv_int(n));
}

BUILTIN(l_clear) {
    self.list->n = 0;
    return jx_work(x, 0) && done(out);
}

BUILTIN(l_reverse) {
    jlist_reverse(self.list);
    return jx_work(x, self.list->n) && done(out);
}

BUILTIN(l_copy) {
    jlist *copy = jlist_new(x, self.list->n);
    if (!copy)
        return false;
    if (self.list->n)
        memcpy(copy->items, self.list->items, self.list->n * sizeof *copy->items);
    copy->n = self.list->n;
    *out = jv_list(J_LIST, copy);
    return jx_work(x, copy->n);
}

/* ---- dicts ---- */

/* items, keys and values. how: 'i', 'k' or 'v'. */
BUILTIN(d_view) {
    const jdict *d = self.dict;
    jlist *list = jlist_new(x, d->n);
    if (!list)
        return false;
    list->type = how == 'i' ? "dict_items" : how == 'k' ? "dict_keys" : "dict_values";
    *out = jv_list(J_VIEW, list);
    for (size_t i = 0; i < d->n; i++) {
        const jentry *e = &d->entries[i];
        if (!(how == 'k'   ? jlist_push(x, list, e->key)
              : how == 'v' ? jlist_push(x, list, e->value)
                           : jlist_push_pair(x, list, e->key, e->value)))
            return false;
    }
    return true;
}

BUILTIN(d_get) {
    const jentry *e = jdict_find(x, self.dict, a[0]);
    *out = e ? e->value : a[1].kind == J_MISSING ? jv_none() : a[1];
    return x->status == MR_OK;
}

BUILTIN(d_pop) {
    jentry *e = jdict_find(x, self.dict, a[0]);
    if (!e && a[1].kind == J_MISSING)
        return jx_fail(x, MR_E_INVALID, "pop of a key that is missing");
    *out = e ? e->value : a[1];
    return x->status == MR_OK && (!e || jdict_remove(x, self.dict, e));
}

BUILTIN(d_setdefault) {
    const jentry *e = jdict_find(x, self.dict, a[0]);
    *out = e ? e->value : a[1].kind == J_MISSING ? jv_none() : a[1];
    return x->status == MR_OK && (e || jdict_set(x, self.dict, a[0], *out));
}

BUILTIN(d_copy) {
    jdict *copy = jdict_new(x, self.dict->n);
    if (!copy)
        return false;
    if (self.dict->n)
        memcpy(copy->entries, self.dict->entries, self.dict->n * sizeof *copy->entries);
    copy->n = self.dict->n;
    *out = (jv){.kind = J_DICT, .dict = copy};
    return jx_work(x, copy->n);
}

BUILTIN(d_clear) {
    self.dict->n = 0;
    return jx_work(x, 0) && done(out);
}

BUILTIN(d_update) {
    return jdict_update(x, self.dict, args) && done(out);
}

/* ---- cyclers and loops ---- */

BUILTIN(c_next) {
    jcycle *c = self.cycle;
    *out = c->items->items[c->next];
    c->next = (c->next + 1) % c->items->n;
    return jx_work(x, 0);
}

BUILTIN(c_reset) {
    self.cycle->next = 0;
    return jx_work(x, 0) && done(out);
}

BUILTIN(loop_cycle) {
    if (!args->n_pos || args->n_named)
        return jx_fail(x, MR_E_INVALID, "no items for cycling given");
    return jv_give(out, args->pos[self.loop->at % args->n_pos]);
}

BUILTIN(loop_changed) {
    jlist *now = jlist_new(x, args->n_pos);
    bool same = false;
    if (!now)
        return false;
    for (size_t i = 0; i < args->n_pos; i++)
        if (!jlist_push(x, now, args->pos[i]))
            return false;
    jv value = jv_list(J_TUPLE, now);
    if (self.loop->changed.kind != J_MISSING && !jv_equal(x, self.loop->changed, value, &same))
        return false;
    self.loop->changed = value;
    return jv_give(out, jv_bool(!same));
}

/* ---- tables ---- */

const jbuiltin *jmethod_find(jkind kind, const char *name, size_t n) {
    static const jbuiltin sequence[] = {{"index", "value", 1, l_index, 0}, {"count", "value", 1, l_count, 0}};
    static const jbuiltin list[] = {{"append", "object", 1, l_append, 0},       {"pop", "index", 0, l_pop, 0},
                                    {"insert", "index object", 2, l_insert, 0}, {"extend", "iterable", 1, l_extend, 0},
                                    {"remove", "value", 1, l_remove, 0},        {"clear", "", 0, l_clear, 0},
                                    {"reverse", "", 0, l_reverse, 0},           {"copy", "", 0, l_copy, 0}};
    static const jbuiltin dict[] = {
        {"items", "", 0, d_view, 'i'},       {"keys", "", 0, d_view, 'k'},
        {"values", "", 0, d_view, 'v'},      {"get", "key default", 1, d_get, 0},
        {"pop", "key default", 1, d_pop, 0}, {"setdefault", "key default", 1, d_setdefault, 0},
        {"copy", "", 0, d_copy, 0},          {"clear", "", 0, d_clear, 0},
        {"update", NULL, 0, d_update, 0}};
    static const jbuiltin cycler[] = {{"next", "", 0, c_next, 0}, {"reset", "", 0, c_reset, 0}};
    static const jbuiltin loop[] = {{"cycle", NULL, 0, loop_cycle, 0}, {"changed", NULL, 0, loop_changed, 0}};
    const jbuiltin *b = NULL;
    if (kind == J_STR)
        return jmethod_str_find(name, n);
    if (kind == J_LIST)
        b = jbuiltin_in(list, sizeof list / sizeof *list, name, n);
    if (kind == J_LIST || kind == J_TUPLE)
        return b ? b : jbuiltin_in(sequence, sizeof sequence / sizeof *sequence, name, n);
    if (kind == J_DICT)
        return jbuiltin_in(dict, sizeof dict / sizeof *dict, name, n);
    if (kind == J_CYCLER)
        return jbuiltin_in(cycler, sizeof cycler / sizeof *cycler, name, n);
    return kind == J_LOOP ? jbuiltin_in(loop, sizeof loop / sizeof *loop, name, n) : NULL;
}
