/* coordinator/serving/jinja/eval.c - evaluates the expressions of a parsed template. exec.c runs the statements. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/interp.h"

static bool eval_list(jx *x, const jnode *node, jv *out) {
    jlist *list = jlist_new(x, (size_t)node->n_kids);
    if (!list)
        return false;
    for (int32_t i = 0; i < node->n_kids; i++) {
        jv item;
        if (!jx_eval(x, node->kids[i], &item) || !jlist_push(x, list, item))
            return false;
    }
    return jv_give(out, jv_list(node->type == N_LIST ? J_LIST : J_TUPLE, list));
}

static bool eval_dict(jx *x, const jnode *node, jv *out) {
    jdict *d = jdict_new(x, (size_t)node->n_kids / 2);
    if (!d)
        return false;
    for (int32_t i = 0; i < node->n_kids; i += 2) {
        jv key, value;
        if (!jx_eval(x, node->kids[i], &key) || !jx_eval(x, node->kids[i + 1], &value) || !jdict_set(x, d, key, value))
            return false;
    }
    return jv_give(out, (jv){.kind = J_DICT, .dict = d});
}

static bool eval_unary(jx *x, const jnode *node, jv *out) {
    jv v;
    if (!jx_eval(x, node->a, &v))
        return false;
    if (node->op == '!')
        return jv_give(out, jv_bool(!jv_truth(v)));
    if (v.kind == J_UNDEFINED || !jv_is_number(v))
        return v.kind == J_UNDEFINED
                   ? jx_fail(x, MR_E_INVALID, "%.*s", (int)v.s->len, v.s->data)
                   : jx_fail(x, MR_E_INVALID, "bad operand type for unary %c: '%s'", node->op, jv_type(v));
    if (v.kind == J_FLOAT)
        *out = jv_float(node->op == '-' ? -v.f : v.f);
    else
        return jv_arithmetic(x, node->op, jv_int(0), v, out);
    return true;
}

static bool eval_concat(jx *x, const jnode *node, jv *out) {
    if (!jv_str(x, "", 0, out))
        return false;
    for (int32_t i = 0; i < node->n_kids; i++) {
        jv v;
        if (!jx_eval(x, node->kids[i], &v) || !jv_to_str(x, v, &v) || !jv_concat(x, out->s, v.s, out))
            return false;
    }
    return true;
}

/* a < b < c means a < b and b < c, with b evaluated once. */
static bool eval_compare(jx *x, const jnode *node, jv *out) {
    jv left, right;
    bool holds = true;
    if (!jx_eval(x, node->a, &left))
        return false;
    for (int32_t i = 0; holds && i < node->n_kids; i++) {
        if (!jx_eval(x, node->kids[i]->a, &right) || !jv_holds(x, node->kids[i]->op, left, right, &holds))
            return false;
        left = right;
    }
    return jv_give(out, jv_bool(holds));
}

static bool eval_condition(jx *x, const jnode *node, jv *out) {
    jv test;
    if (!jx_eval(x, node->b, &test))
        return false;
    if (jv_truth(test))
        return jx_eval(x, node->a, out);
    if (node->c)
        return jx_eval(x, node->c, out);
    return jv_undefined(x, out,
                        "the inline if-expression on line %d evaluated to false and no else section was defined.",
                        (int)node->line);
}

static bool eval_subscript(jx *x, const jnode *node, jv *out) {
    jv object, key;
    if (!jx_eval(x, node->a, &object))
        return false;
    if (node->b->type != N_SLICE)
        return jx_eval(x, node->b, &key) && jv_subscript(x, object, key, out);
    jv bounds[3];
    const jnode *parts[3] = {node->b->a, node->b->b, node->b->c};
    for (int i = 0; i < 3; i++) {
        bounds[i] = jv_none();
        if (parts[i] && !jx_eval(x, parts[i], &bounds[i]))
            return false;
    }
    return jv_slice(x, object, bounds, out);
}

static bool eval_call(jx *x, const jnode *node, jv *out) {
    jv callee;
    jargs args;
    if (!jx_eval(x, node->a, &callee) || !jx_arguments(x, node, &args))
        return false;
    x->line = node->line;
    return jv_call(x, callee, &args, out);
}

/* Filters and tests. */
static bool eval_builtin(jx *x, const jnode *node, jv *out) {
    jv v = x->filter_input;
    jargs args;
    if ((node->a && !jx_eval(x, node->a, &v)) || !jx_arguments(x, node, &args))
        return false;
    x->line = node->line;
    if (!node->builtin)
        return jx_fail(x, MR_E_INVALID, "no %s named '%.*s'", node->type == N_FILTER ? "filter" : "test",
                       (int)(node->value.s->len < 60 ? node->value.s->len : 60), node->value.s->data);
    return jbuiltin_call(x, node->builtin, v, &args, out);
}

static bool eval_two(jx *x, const jnode *node, jv *out) {
    jv a, b;
    if (!jx_eval(x, node->a, &a))
        return false;
    if (node->type == N_AND || node->type == N_OR) {
        if (jv_truth(a) == (node->type == N_OR))
            return jv_give(out, a);
        return jx_eval(x, node->b, out);
    }
    return jx_eval(x, node->b, &b) && jv_arithmetic(x, node->op, a, b, out);
}

static bool eval(jx *x, const jnode *node, jv *out) {
    switch (node->type) {
    case N_CONST:
        return jv_give(out, node->value);
    case N_NAME:
        return jscope_get(x, node->symbol, out);
    case N_TUPLE:
    case N_LIST:
        return eval_list(x, node, out);
    case N_DICT:
        return eval_dict(x, node, out);
    case N_UNARY:
        return eval_unary(x, node, out);
    case N_BINARY:
    case N_AND:
    case N_OR:
        return eval_two(x, node, out);
    case N_CONCAT:
        return eval_concat(x, node, out);
    case N_COMPARE:
        return eval_compare(x, node, out);
    case N_COND:
        return eval_condition(x, node, out);
    case N_ATTRIBUTE: {
        jv object;
        return jx_eval(x, node->a, &object) && jv_attribute(x, object, node->value.s, out);
    }
    case N_SUBSCRIPT:
        return eval_subscript(x, node, out);
    case N_CALL:
        return eval_call(x, node, out);
    case N_FILTER:
    case N_TEST:
        return eval_builtin(x, node, out);
    default:
        return jx_fail(x, MR_E_INVALID, "a slice stands where a value should");
    }
}

bool jx_eval(jx *x, const jnode *node, jv *out) {
    if (!jx_enter(x) || !jx_work(x, 0))
        return false;
    x->line = node->line;
    bool ok = eval(x, node, out);
    jx_leave(x);
    return ok;
}
