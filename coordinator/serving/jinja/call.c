/* coordinator/serving/jinja/call.c - calls builtins and macros. Arguments are bound to parameters by Python's rules. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/interp.h"

/* ---- arguments ---- */

static bool spread_names(jx *x, jv map, jlist *names, jlist *named) {
    if (map.kind != J_DICT)
        return jx_fail(x, MR_E_INVALID, "argument after ** must be a mapping, not %s", jv_type(map));
    for (size_t i = 0; i < map.dict->n; i++) {
        if (map.dict->entries[i].key.kind != J_STR)
            return jx_fail(x, MR_E_INVALID, "keywords must be strings");
        if (!jlist_push(x, names, map.dict->entries[i].key) || !jlist_push(x, named, map.dict->entries[i].value))
            return false;
    }
    return true;
}

static bool add_argument(jx *x, const jnode *arg, jlist *pos, jlist *names, jlist *named) {
    jv v;
    jlist *items;
    if (!jx_eval(x, arg->a, &v))
        return false;
    if (arg->op == 'k')
        return jlist_push(x, names, arg->value) && jlist_push(x, named, v);
    if (arg->op == '2')
        return spread_names(x, v, names, named);
    if (arg->op != '*')
        return jlist_push(x, pos, v);
    if (!jv_items(x, v, &items))
        return false;
    for (size_t i = 0; i < items->n; i++)
        if (!jlist_push(x, pos, items->items[i]))
            return false;
    return true;
}

bool jx_arguments(jx *x, const jnode *node, jargs *out) {
    jlist *lists[3] = {NULL, NULL, NULL};
    *out = (jargs){0};
    if (!node->n_kids)
        return true;
    for (int i = 0; i < 3; i++)
        if (!(lists[i] = jlist_new(x, i ? 0 : (size_t)node->n_kids)))
            return false;
    for (int32_t i = 0; i < node->n_kids; i++)
        if (!add_argument(x, node->kids[i], lists[0], lists[1], lists[2]))
            return false;
    *out = (jargs){lists[0]->items, lists[0]->n, lists[1]->items, lists[2]->items, lists[1]->n};
    return true;
}

/* ---- builtins ---- */

/* The index of a name in a list such as "a b c", -1 if the list does not have the name. name NULL: returns the number
 * of names. */
static int param_index(const char *params, const jstr *name) {
    int i = 0;
    for (const char *p = params; *p; i++) {
        size_t n = strcspn(p, " ");
        if (name && name->len == n && memcmp(name->data, p, n) == 0)
            return i;
        p += n + (p[n] == ' ');
    }
    return name ? -1 : i;
}

static bool bind(jx *x, const jbuiltin *b, const jargs *args, jv *a) {
    size_t n_params = (size_t)param_index(b->params, NULL);
    if (args->n_pos > n_params)
        return jx_fail(x, MR_E_INVALID, "%s takes at most %zu arguments (%zu given)", b->name, n_params, args->n_pos);
    for (size_t i = 0; i < args->n_pos; i++)
        a[i] = args->pos[i];
    for (size_t i = 0; i < args->n_named; i++) {
        const jstr *name = args->names[i].s;
        int at = param_index(b->params, name);
        if (at < 0 || a[at].kind != J_MISSING)
            return jx_fail(x, MR_E_INVALID, "%s got an unexpected or repeated argument '%.*s'", b->name,
                           (int)(name->len < 60 ? name->len : 60), name->data);
        a[at] = args->named[i];
    }
    for (size_t i = 0; i < b->n_required; i++)
        if (a[i].kind == J_MISSING)
            return jx_fail(x, MR_E_INVALID, "%s needs %d arguments", b->name, b->n_required);
    return true;
}

bool jbuiltin_call(jx *x, const jbuiltin *b, jv self, const jargs *args, jv *out) {
    jv a[JB_MAX_PARAMS];
    memset(a, 0, sizeof a); /* J_MISSING */
    if (b->params && !bind(x, b, args, a))
        return false;
    return jx_work(x, 0) && b->call(x, self, a, args, b->how, out);
}

const jbuiltin *jbuiltin_in(const jbuiltin *table, size_t n_table, const char *name, size_t n) {
    for (size_t i = 0; i < n_table; i++)
        if (strlen(table[i].name) == n && memcmp(table[i].name, name, n) == 0)
            return &table[i];
    return NULL;
}

/* ---- macros ---- */

/* Finds an argument by its name and marks the argument as used. Returns J_MISSING if there is none. */
static jv take_named(const jargs *args, const jstr *name, bool *used) {
    for (size_t i = 0; i < args->n_named; i++) {
        const jstr *other = args->names[i].s;
        if (!used[i] && other->len == name->len && memcmp(other->data, name->data, name->len) == 0) {
            used[i] = true;
            return args->named[i];
        }
    }
    return (jv){.kind = J_MISSING};
}

static bool bind_parameter(jx *x, const jmacro *macro, int32_t i, const jargs *args, bool *used) {
    const jnode *param = macro->node->kids[i];
    const jstr *name = x->template->symbols[param->symbol];
    jv v = (size_t)i < args->n_pos ? args->pos[i] : take_named(args, name, used);
    if (v.kind == J_MISSING) {
        if (param->a ? !jx_eval(x, param->a, &v)
                     : !jv_undefined(x, &v, "parameter '%.*s' was not provided", (int)name->len, name->data))
            return false;
    }
    return jscope_set(x, param->symbol, v);
}

static bool bind_caller(jx *x, const jmacro *macro, const jargs *args, bool *used) {
    for (int32_t i = 0; i < macro->node->n_kids; i++)
        if (macro->node->kids[i]->symbol == SYM_CALLER)
            return true;
    if (!macro->node->takes_caller)
        return true;
    jv caller = take_named(args, x->template->symbols[SYM_CALLER], used);
    if (caller.kind == J_MISSING && !jv_undefined(x, &caller, "No caller defined"))
        return false;
    return jscope_set(x, SYM_CALLER, caller);
}

/* Binds the arguments that belong to no parameter to varargs and kwargs. Refuses them if the macro uses neither. */
static bool bind_rest(jx *x, const jmacro *macro, const jargs *args, const bool *used) {
    const jnode *node = macro->node;
    const jstr *macro_name = x->template->symbols[node->symbol];
    size_t n_params = (size_t)node->n_kids;
    jdict *kwargs = jdict_new(x, 0);
    jlist *varargs = jlist_new(x, 0);
    if (!kwargs || !varargs)
        return false;
    for (size_t i = 0; i < args->n_named; i++) {
        const jstr *name = args->names[i].s;
        if (used[i])
            continue;
        if (!node->takes_kwargs)
            return jx_fail(x, MR_E_INVALID, "macro '%.*s' takes no keyword argument '%.*s'", (int)macro_name->len,
                           macro_name->data, (int)(name->len < 60 ? name->len : 60), name->data);
        if (!jdict_set(x, kwargs, args->names[i], args->named[i]))
            return false;
    }
    if (args->n_pos > n_params && !node->takes_varargs)
        return jx_fail(x, MR_E_INVALID, "macro '%.*s' takes not more than %zu argument(s)", (int)macro_name->len,
                       macro_name->data, n_params);
    for (size_t i = n_params; i < args->n_pos; i++)
        if (!jlist_push(x, varargs, args->pos[i]))
            return false;
    return (!node->takes_kwargs || jscope_set(x, SYM_KWARGS, (jv){.kind = J_DICT, .dict = kwargs})) &&
           (!node->takes_varargs || jscope_set(x, SYM_VARARGS, jv_list(J_TUPLE, varargs)));
}

static bool bind_macro(jx *x, const jmacro *macro, const jargs *args) {
    bool *used = jx_alloc(x, args->n_named + 1, sizeof *used);
    if (!used)
        return false;
    for (int32_t i = 0; i < macro->node->n_kids; i++)
        if (!bind_parameter(x, macro, i, args, used))
            return false;
    return bind_caller(x, macro, args, used) && bind_rest(x, macro, args, used);
}

static bool jmacro_call(jx *x, const jmacro *macro, const jargs *args, jv *out) {
    jscope *outer = x->scope, *scope = jscope_new(x, macro->scope);
    int32_t line = x->line;
    if (!scope)
        return false;
    x->scope = scope;
    bool ok = bind_macro(x, macro, args) && jx_capture(x, macro->node->body, scope, out);
    x->scope = outer;
    if (ok)
        x->line = line;
    return ok;
}

bool jv_is_callable(jv v) {
    return v.kind == J_FUNCTION || v.kind == J_MACRO || v.kind == J_JOINER || v.kind == J_LOOP || v.kind == J_UNDEFINED;
}

bool jv_call(jx *x, jv f, const jargs *args, jv *out) {
    switch (f.kind) {
    case J_FUNCTION:
        return jbuiltin_call(x, f.fn->builtin, f.fn->self, args, out);
    case J_MACRO:
        return jmacro_call(x, f.macro, args, out);
    case J_LOOP:
        return jx_call_recursive_loop(x, f.loop, args, out);
    case J_JOINER: /* nothing the first time, then the separator */
        *out = f.cycle->items->items[f.cycle->next];
        f.cycle->next = 1;
        return true;
    case J_UNDEFINED:
        return jx_fail(x, MR_E_INVALID, "%.*s", (int)f.s->len, f.s->data);
    default:
        return jx_fail(x, MR_E_INVALID, "'%s' object is not callable", jv_type(f));
    }
}
