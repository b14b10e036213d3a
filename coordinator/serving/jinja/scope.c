/* coordinator/serving/jinja/scope.c - the variables of a template: scopes inside each other, the lookup through them,
 * and assignment to names, lists of names and attributes of namespaces. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/interp.h"

jscope *jscope_new(jx *x, jscope *parent) {
    jscope *scope = jx_alloc(x, 1, sizeof *scope);
    if (scope)
        scope->parent = parent;
    return scope;
}

/* Finds a symbol in one scope. Adds the number of bindings that were compared to n. */
static jbinding *find_in(const jscope *scope, int32_t symbol, size_t *n) {
    ++*n;
    for (jbinding *b = scope->first; b; b = b->next, ++*n)
        if (b->symbol == symbol)
            return b;
    return NULL;
}

bool jscope_set(jx *x, int32_t symbol, jv value) {
    size_t n = 0;
    jbinding *b = find_in(x->scope, symbol, &n);
    if (!b) {
        b = jx_alloc(x, 1, sizeof *b);
        if (!b)
            return false;
        *b = (jbinding){.symbol = symbol, .next = x->scope->first};
        x->scope->first = b;
    }
    b->value = value;
    return jx_work(x, n);
}

/* Looks up a variable of the caller, then a builtin function. */
static bool get_global(jx *x, int32_t symbol, jv *out) {
    const jstr *name = x->template->symbols[symbol];
    const json_t *json = x->variables ? json_object_getn(x->variables, name->data, name->len) : NULL;
    const jbuiltin *b = json ? NULL : jglobal_find(name->data, name->len);
    if (json)
        return jv_from_json(x, json, out);
    if (!b)
        return jv_undefined(x, out, "'%.*s' is undefined", (int)(name->len < 80 ? name->len : 80), name->data);
    jbound *bound = jx_alloc(x, 1, sizeof *bound);
    if (!bound)
        return false;
    *bound = (jbound){.builtin = b};
    return jv_give(out, (jv){.kind = J_FUNCTION, .fn = bound});
}

bool jscope_get(jx *x, int32_t symbol, jv *out) {
    size_t n = 0;
    for (const jscope *scope = x->scope; scope; scope = scope->parent) {
        const jbinding *b = find_in(scope, symbol, &n);
        if (b) {
            *out = b->value;
            return jx_work(x, n);
        }
    }
    if (!jx_work(x, n))
        return false;
    if (x->globals[symbol].kind == J_MISSING && !get_global(x, symbol, &x->globals[symbol]))
        return false;
    return jv_give(out, x->globals[symbol]);
}

static bool assign_attribute(jx *x, const jnode *target, jv value) {
    jv object;
    if (!jscope_get(x, target->symbol, &object))
        return false;
    if (object.kind != J_NAMESPACE)
        return jx_fail(x, MR_E_INVALID, "cannot assign attribute on non-namespace object");
    return jdict_set(x, object.dict, target->value, value);
}

bool jx_assign(jx *x, const jnode *target, jv value) {
    if (target->type == N_NAME)
        return jscope_set(x, target->symbol, value);
    if (target->type == N_NSREF)
        return assign_attribute(x, target, value);
    jlist *items;
    if (!jx_enter(x) || !jv_items(x, value, &items))
        return false;
    if (items->n != (size_t)target->n_kids)
        return jx_fail(x, MR_E_INVALID, "%zu values for %d names", items->n, (int)target->n_kids);
    for (int32_t i = 0; i < target->n_kids; i++)
        if (!jx_assign(x, target->kids[i], items->items[i]))
            return false;
    jx_leave(x);
    return true;
}
