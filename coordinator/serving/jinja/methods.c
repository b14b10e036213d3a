/* Methods of lists, tuples, dicts, cyclers and loops. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/interp.h"

#define METHOD(name) static bool name(jx *x, jv self, const jv *a, const jargs *args, jv *out)
#define UNUSED() ((void)a, (void)args)

static bool done(jv *out) {
    *out = jv_none();
    return true;
}

/* ---- lists and tuples ---- */

METHOD(l_append) {
    UNUSED();
    return jlist_push(x, self.list, a[0]) && done(out);
}

static bool remove_at(jx *x, jlist *list, size_t at) {
    memmove(&list->items[at], &list->items[at + 1], (--list->n - at) * sizeof *list->items);
    return jx_work(x, list->n);
}

METHOD(l_pop) {
    UNUSED();
    int64_t at = -1, n = (int64_t)self.list->n;
    if (a[0].kind != J_MISSING && !jv_as_int(x, a[0], "the index", &at))
        return false;
    at += at < 0 ? n : 0;
    if (at < 0 || at >= n)
        return jx_fail(x, MR_E_INVALID, n ? "pop index out of range" : "pop from empty list");
    *out = self.list->items[at];
    return remove_at(x, self.list, (size_t)at);
}

METHOD(l_insert) {
    UNUSED();
    int64_t at, n = (int64_t)self.list->n;
    if (!jv_as_int(x, a[0], "the index", &at) || !jlist_push(x, self.list, a[1]))
        return false;
    at += at < 0 ? n : 0;
    at = at < 0 ? 0 : at > n ? n : at;
    memmove(&self.list->items[at + 1], &self.list->items[at], (size_t)(n - at) * sizeof a[1]);
    self.list->items[at] = a[1];
    return jx_work(x, (size_t)n) && done(out);
}

METHOD(l_extend) {
    UNUSED();
    jlist *items;
    if (!jv_items(x, a[0], &items))
        return false;
    for (size_t i = 0, n = items->n; i < n; i++) /* n before: a list may be extended by itself */
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

METHOD(l_index) {
    UNUSED();
    size_t at = 0;
    bool ok = index_of(x, self.list, a[0], &at);
    *out = jv_int((int64_t)at);
    return ok;
}

METHOD(l_remove) {
    UNUSED();
    size_t at;
    return index_of(x, self.list, a[0], &at) && remove_at(x, self.list, at) && done(out);
}

METHOD(l_count) {
    UNUSED();
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n; i++) {
        bool same;
        if (!jv_equal(x, self.list->items[i], a[0], &same))
            return false;
        n += same;
    }
    *out = jv_int(n);
    return true;
}

METHOD(l_clear) {
    UNUSED();
    self.list->n = 0;
    return jx_work(x, 0) && done(out);
}

METHOD(l_reverse) {
    UNUSED();
    jlist *list = self.list;
    for (size_t i = 0, j = list->n; i + 1 < j; i++) {
        jv swap = list->items[i];
        list->items[i] = list->items[--j];
        list->items[j] = swap;
    }
    return jx_work(x, list->n) && done(out);
}

METHOD(l_copy) {
    UNUSED();
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

static bool view(jx *x, const jdict *d, const char *type, jv *out) {
    jlist *list = jlist_new(x, d->n);
    if (!list)
        return false;
    list->type = type;
    *out = jv_list(J_VIEW, list);
    for (size_t i = 0; i < d->n; i++) {
        const jentry *e = &d->entries[i];
        if (!(type[5] == 'k'   ? jlist_push(x, list, e->key)
              : type[5] == 'v' ? jlist_push(x, list, e->value)
                               : jlist_push_pair(x, list, e->key, e->value)))
            return false;
    }
    return true;
}

METHOD(d_items) {
    UNUSED();
    return view(x, self.dict, "dict_items", out);
}
METHOD(d_keys) {
    UNUSED();
    return view(x, self.dict, "dict_keys", out);
}
METHOD(d_values) {
    UNUSED();
    return view(x, self.dict, "dict_values", out);
}

METHOD(d_get) {
    UNUSED();
    const jentry *e = jdict_find(x, self.dict, a[0]);
    *out = e ? e->value : a[1].kind == J_MISSING ? jv_none() : a[1];
    return x->status == MR_OK;
}

METHOD(d_pop) {
    UNUSED();
    jentry *e = jdict_find(x, self.dict, a[0]);
    if (!e && a[1].kind == J_MISSING)
        return jx_fail(x, MR_E_INVALID, "pop of a key that is missing");
    *out = e ? e->value : a[1];
    return x->status == MR_OK && (!e || jdict_remove(x, self.dict, e));
}

METHOD(d_setdefault) {
    UNUSED();
    const jentry *e = jdict_find(x, self.dict, a[0]);
    *out = e ? e->value : a[1].kind == J_MISSING ? jv_none() : a[1];
    return x->status == MR_OK && (e || jdict_set(x, self.dict, a[0], *out));
}

METHOD(d_copy) {
    UNUSED();
    jdict *copy = jdict_new(x, self.dict->n);
    if (!copy)
        return false;
    if (self.dict->n)
        memcpy(copy->entries, self.dict->entries, self.dict->n * sizeof *copy->entries);
    copy->n = self.dict->n;
    *out = (jv){.kind = J_DICT, .dict = copy};
    return jx_work(x, copy->n);
}

METHOD(d_clear) {
    UNUSED();
    self.dict->n = 0;
    return jx_work(x, 0) && done(out);
}

METHOD(d_update) {
    (void)a;
    return jdict_update(x, self.dict, args) && done(out);
}

/* ---- cyclers and loops ---- */

METHOD(c_next) {
    UNUSED();
    jcycle *c = self.cycle;
    *out = c->items->items[c->next];
    c->next = (c->next + 1) % c->items->n;
    return jx_work(x, 0);
}

METHOD(c_reset) {
    UNUSED();
    self.cycle->next = 0;
    return jx_work(x, 0) && done(out);
}

METHOD(loop_cycle) {
    (void)a;
    if (!args->n_pos || args->n_named)
        return jx_fail(x, MR_E_INVALID, "no items for cycling given");
    *out = args->pos[self.loop->at % args->n_pos];
    return true;
}

METHOD(loop_changed) {
    (void)a;
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
    *out = jv_bool(!same);
    return true;
}

/* ---- tables ---- */

const jbuiltin *jmethod_find(jkind kind, const char *name, size_t n) {
    static const jbuiltin sequence[] = {{"index", "value", 1, l_index}, {"count", "value", 1, l_count}};
    static const jbuiltin list[] = {{"append", "object", 1, l_append},       {"pop", "index", 0, l_pop},
                                    {"insert", "index object", 2, l_insert}, {"extend", "iterable", 1, l_extend},
                                    {"remove", "value", 1, l_remove},        {"clear", "", 0, l_clear},
                                    {"reverse", "", 0, l_reverse},           {"copy", "", 0, l_copy}};
    static const jbuiltin dict[] = {{"items", "", 0, d_items},        {"keys", "", 0, d_keys},
                                    {"values", "", 0, d_values},      {"get", "key default", 1, d_get},
                                    {"pop", "key default", 1, d_pop}, {"setdefault", "key default", 1, d_setdefault},
                                    {"copy", "", 0, d_copy},          {"clear", "", 0, d_clear},
                                    {"update", NULL, 0, d_update}};
    static const jbuiltin cycler[] = {{"next", "", 0, c_next}, {"reset", "", 0, c_reset}};
    static const jbuiltin loop[] = {{"cycle", NULL, 0, loop_cycle}, {"changed", NULL, 0, loop_changed}};
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
