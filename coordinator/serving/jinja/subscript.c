/* coordinator/serving/jinja/subscript.c - attributes, items and slices of values. A missing one gives an undefined
 * value, which knows what was looked up. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/interp.h"

static bool fail_undefined(jx *x, jv v) {
    return jx_fail(x, MR_E_INVALID, "%.*s", (int)v.s->len, v.s->data);
}

static bool no_attribute(jx *x, jv object, const jstr *name, jv *out) {
    return jv_undefined(x, out, "'%s' object has no attribute '%.*s'", jv_type(object),
                        (int)(name->len < 80 ? name->len : 80), name->data);
}

static jv loop_neighbour(const jloop *loop, bool next, bool *out_there) {
    *out_there = next ? loop->at + 1 < loop->items->n : loop->at > 0;
    return *out_there ? loop->items->items[next ? loop->at + 1 : loop->at - 1] : jv_none();
}

static bool loop_attribute(jx *x, jv object, const jstr *name, jv *out) {
    const jloop *loop = object.loop;
    int64_t at = (int64_t)loop->at, n = (int64_t)loop->items->n;
    const struct {
        const char *name;
        jv value;
    } fixed[] = {{"index", jv_int(at + 1)},
                 {"index0", jv_int(at)},
                 {"first", jv_bool(at == 0)},
                 {"last", jv_bool(at + 1 == n)},
                 {"length", jv_int(n)},
                 {"revindex", jv_int(n - at)},
                 {"revindex0", jv_int(n - at - 1)},
                 {"depth", jv_int(loop->depth0 + 1)},
                 {"depth0", jv_int(loop->depth0)}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (jstr_is(name, fixed[i].name))
            return jv_give(out, fixed[i].value);
    bool next = jstr_is(name, "nextitem"), there;
    if (next || jstr_is(name, "previtem")) {
        *out = loop_neighbour(loop, next, &there);
        return there || jv_undefined(x, out, "there is no %s item", next ? "next" : "previous");
    }
    return no_attribute(x, object, name, out);
}

static bool macro_attribute(jx *x, jv object, const jstr *name, jv *out) {
    const jnode *node = object.macro->node;
    if (jstr_is(name, "name"))
        return jv_give(out, (jv){.kind = J_STR, .s = x->template->symbols[node->symbol]});
    if (!jstr_is(name, "arguments"))
        return no_attribute(x, object, name, out);
    jlist *list = jlist_new(x, (size_t)node->n_kids);
    for (int32_t i = 0; list && i < node->n_kids; i++)
        if (!jlist_push(x, list, (jv){.kind = J_STR, .s = x->template->symbols[node->kids[i]->symbol]}))
            return false;
    *out = jv_list(J_TUPLE, list);
    return list != NULL;
}

static bool method(jx *x, jv object, const jstr *name, jv *out) {
    const jbuiltin *b = jmethod_find((jkind)object.kind, name->data, name->len);
    out->kind = J_MISSING;
    if (!b)
        return true;
    jbound *bound = jx_alloc(x, 1, sizeof *bound);
    if (!bound)
        return false;
    *bound = (jbound){b, object};
    return jv_give(out, (jv){.kind = J_FUNCTION, .fn = bound});
}

bool jv_attribute(jx *x, jv object, jstr *name, jv *out) {
    if (object.kind == J_UNDEFINED)
        return fail_undefined(x, object);
    if (!method(x, object, name, out) || out->kind != J_MISSING)
        return x->status == MR_OK;
    if (object.kind == J_LOOP)
        return loop_attribute(x, object, name, out);
    if (object.kind == J_MACRO)
        return macro_attribute(x, object, name, out);
    if (object.kind == J_DICT || object.kind == J_NAMESPACE) {
        const jentry *entry = jdict_find_str(x, object.dict, name->data, name->len);
        if (entry)
            return jv_give(out, entry->value);
    }
    return x->status == MR_OK && no_attribute(x, object, name, out);
}

static bool index_list(const jv *items, int64_t n, int64_t at, jv *out) {
    at += at < 0 ? n : 0;
    if (at < 0 || at >= n)
        return false;
    return jv_give(out, items[at]);
}

static bool index_string(jx *x, jv object, int64_t at, jv *out, bool *out_found) {
    int64_t n = jstr_chars(object.s);
    at += at < 0 ? n : 0;
    *out_found = at >= 0 && at < n;
    if (!*out_found)
        return true;
    size_t start = jstr_offset(object.s, at), end = jstr_offset(object.s, at + 1);
    return jv_mark(out, object.markup, jx_work(x, start) && jv_str(x, object.s->data + start, end - start, out));
}

/* object[key] with an integer key. out_found: whether the object has that item. */
static bool index_value(jx *x, jv object, jv key, jv *out, bool *out_found) {
    int64_t at = key.kind == J_INT ? key.i : key.b;
    *out_found = false;
    if (object.kind == J_STR)
        return index_string(x, object, at, out, out_found);
    if (object.kind == J_LIST || object.kind == J_TUPLE)
        *out_found = index_list(object.list->items, (int64_t)object.list->n, at, out);
    if (object.kind == J_RANGE) {
        at += at < 0 ? object.range->n : 0;
        *out_found = at >= 0 && at < object.range->n;
        if (*out_found)
            *out = jv_int(object.range->start + at * object.range->step);
    }
    return true;
}

bool jv_subscript(jx *x, jv object, jv key, jv *out) {
    bool found = false;
    if (object.kind == J_UNDEFINED)
        return fail_undefined(x, object);
    if (object.kind == J_DICT) {
        jv plain = key;
        bool hashable = key.kind != J_LIST && key.kind != J_DICT && key.kind != J_VIEW;
        const jentry *entry = hashable ? jdict_find(x, object.dict, plain) : NULL;
        if (x->status != MR_OK)
            return false;
        if (entry)
            return jv_give(out, entry->value);
    } else if (key.kind == J_INT || key.kind == J_BOOL) {
        if (!index_value(x, object, key, out, &found))
            return false;
    }
    if (found)
        return true;
    if (key.kind == J_STR)
        return object.kind == J_DICT ? (method(x, object, key.s, out) && out->kind != J_MISSING) ||
                                           (x->status == MR_OK && no_attribute(x, object, key.s, out))
                                     : jv_attribute(x, object, key.s, out);
    jtext text = {0};
    return jv_repr(x, key, &text) && jv_undefined(x, out, "'%s' object has no element %.*s", jv_type(object),
                                                  (int)(text.len < 60 ? text.len : 60), text.data);
}

/* ---- slices ---- */

/* out: start, stop and step as in Python's slice.indices(n). */
static bool slice_bounds(jx *x, const jv bounds[3], int64_t n, int64_t out[3]) {
    int64_t step = 1;
    if (bounds[2].kind != J_NONE && !jv_as_int(x, bounds[2], "a slice index", &step))
        return false;
    if (step == 0)
        return jx_fail(x, MR_E_INVALID, "slice step cannot be zero");
    step = step < -INT32_MAX ? -INT32_MAX : step > INT32_MAX ? INT32_MAX : step;
    int64_t lowest = step < 0 ? -1 : 0, highest = step < 0 ? n - 1 : n;
    for (int i = 0; i < 2; i++) {
        int64_t at = (i == 0) == (step < 0) ? highest : lowest;
        if (bounds[i].kind != J_NONE) {
            if (!jv_as_int(x, bounds[i], "a slice index", &at))
                return false;
            at = at < -n ? lowest : at < 0 ? at + n : at > highest ? highest : at;
        }
        out[i] = at;
    }
    out[2] = step;
    return true;
}

static bool slice_string(jx *x, jv object, const int64_t b[3], jv *out) {
    jtext text = {0};
    if (b[2] == 1) {
        size_t start = jstr_offset(object.s, b[0]), end = jstr_offset(object.s, b[1] < b[0] ? b[0] : b[1]);
        return jx_work(x, end) && jv_str(x, object.s->data + start, end - start, out);
    }
    for (int64_t i = b[0]; b[2] > 0 ? i < b[1] : i > b[1]; i += b[2]) {
        size_t start = jstr_offset(object.s, i), end = jstr_offset(object.s, i + 1);
        if (!jx_work(x, start) || !jtext_add(x, &text, object.s->data + start, end - start))
            return false;
    }
    return jv_text(x, &text, out);
}

/* A slice of a range is a range. */
static bool slice_range(jx *x, const jrange *r, const int64_t b[3], jv *out) {
    jrange *part = jx_alloc(x, 1, sizeof *part);
    if (!part)
        return false;
    int64_t n = b[2] > 0 ? (b[1] - b[0] + b[2] - 1) / b[2] : (b[0] - b[1] - b[2] - 1) / -b[2];
    int64_t start, stop;
    if (__builtin_mul_overflow(r->step, b[2], &part->step) || __builtin_mul_overflow(r->step, b[0], &start) ||
        __builtin_mul_overflow(r->step, b[1], &stop) || __builtin_add_overflow(r->start, start, &part->start) ||
        __builtin_add_overflow(r->start, stop, &part->stop))
        return jx_fail(x, MR_E_INVALID, "an integer does not fit 64 bits");
    part->n = n < 0 ? 0 : n;
    return jv_give(out, (jv){.kind = J_RANGE, .range = part});
}

bool jv_slice(jx *x, jv object, const jv bounds[3], jv *out) {
    int64_t n, b[3];
    if (object.kind == J_UNDEFINED)
        return fail_undefined(x, object);
    if (object.kind != J_STR && object.kind != J_LIST && object.kind != J_TUPLE && object.kind != J_RANGE)
        return jx_fail(x, MR_E_INVALID, "'%s' object cannot be sliced", jv_type(object));
    if (!jv_length(x, object, &n) || !slice_bounds(x, bounds, n, b))
        return false;
    if (object.kind == J_STR) {
        return jv_mark(out, object.markup, slice_string(x, object, b, out));
    }
    if (object.kind == J_RANGE)
        return slice_range(x, object.range, b, out);
    jlist *list = jlist_new(x, 0);
    for (int64_t i = b[0]; list && (b[2] > 0 ? i < b[1] : i > b[1]); i += b[2])
        if (!jlist_push(x, list, object.list->items[i]))
            return false;
    *out = jv_list((jkind)object.kind, list);
    return list != NULL;
}
