/* coordinator/serving/jinja/exec.c - runs the statements of a parsed template. eval.c evaluates the expressions. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/interp.h"

static bool exec_block(jx *x, const jnode *node, jflow *flow) {
    for (int32_t i = 0; i < node->n_kids && *flow == FLOW_ON; i++)
        if (!jx_exec(x, node->kids[i], flow))
            return false;
    return true;
}

/* Runs body with `scope` as the innermost scope. */
static bool exec_in(jx *x, const jnode *body, jscope *scope, jflow *flow) {
    jscope *outer = x->scope;
    if (!scope)
        return false;
    x->scope = scope;
    bool ok = jx_exec(x, body, flow);
    x->scope = outer;
    return ok;
}

bool jx_capture(jx *x, const jnode *body, jscope *scope, jv *out) {
    jtext text = {0}, *outer = x->out;
    jflow flow = FLOW_ON;
    x->out = &text;
    bool ok = exec_in(x, body, jscope_new(x, scope), &flow) && jv_text(x, &text, out);
    x->out = outer;
    return ok;
}

/* The items for which the condition of the loop holds. */
static bool filter_items(jx *x, const jnode *node, jlist *items, jlist **out) {
    jscope *outer = x->scope;
    jlist *kept = jlist_new(x, 0);
    bool ok = kept != NULL;
    for (size_t i = 0; ok && i < items->n; i++) {
        jv test;
        x->scope = jscope_new(x, outer);
        ok = x->scope && jx_assign(x, node->a, items->items[i]) && jx_eval(x, node->c, &test) &&
             (!jv_truth(test) || jlist_push(x, kept, items->items[i]));
    }
    x->scope = outer;
    *out = kept;
    return ok;
}

/* Runs the iterations of a loop, each in a new scope. As in Python, items that the body appends to the list are visited
 * too. */
static bool run_turns(jx *x, const jnode *node, jloop *loop, jflow *flow) {
    jscope *outer = x->scope;
    bool ok = true;
    for (loop->at = 0; ok && loop->at < loop->items->n; loop->at++) {
        jflow inner = FLOW_ON;
        x->scope = jscope_new(x, outer);
        ok = x->scope && jscope_set(x, SYM_LOOP, (jv){.kind = J_LOOP, .loop = loop}) &&
             jx_assign(x, node->a, loop->items->items[loop->at]) && jx_exec(x, node->body, &inner);
        if (inner == FLOW_BREAK)
            break;
    }
    x->scope = outer;
    *flow = FLOW_ON;
    return ok;
}

static bool jx_run_loop(jx *x, const jnode *node, jv over, int32_t depth0, jflow *flow) {
    jloop *loop = jx_alloc(x, 1, sizeof *loop);
    jlist *items;
    if (!loop || !jv_items(x, over, &items) || (node->c && !filter_items(x, node, items, &items)))
        return false;
    *loop = (jloop){.items = items, .depth0 = depth0, .node = node, .scope = x->scope};
    if (!items->n)
        return !node->otherwise || exec_in(x, node->otherwise, jscope_new(x, x->scope), flow);
    return run_turns(x, node, loop, flow);
}

bool jx_call_recursive_loop(jx *x, const jloop *loop, const jargs *args, jv *out) {
    if (!loop->node->recursive || args->n_pos != 1 || args->n_named)
        return jx_fail(x, MR_E_INVALID, "the loop must have the 'recursive' marker and be called with one iterable");
    jtext text = {0}, *outer_out = x->out;
    jscope *outer = x->scope;
    jflow flow = FLOW_ON;
    x->out = &text;
    x->scope = loop->scope;
    bool ok = jx_run_loop(x, loop->node, args->pos[0], loop->depth0 + 1, &flow) && jv_text(x, &text, out);
    x->out = outer_out;
    x->scope = outer;
    return ok;
}

static bool exec_for(jx *x, const jnode *node, jflow *flow) {
    jv over;
    return jx_eval(x, node->b, &over) && jx_run_loop(x, node, over, 0, flow);
}

static bool exec_if(jx *x, const jnode *node, jflow *flow) {
    for (; node && node->type == N_IF; node = node->otherwise) {
        jv test;
        if (!jx_eval(x, node->a, &test))
            return false;
        if (jv_truth(test))
            return jx_exec(x, node->body, flow);
    }
    return !node || jx_exec(x, node, flow);
}

/* Passes the text of a block through its filters. filters NULL: the text stays as it is. */
static bool apply_filters(jx *x, const jnode *filters, jv *v) {
    x->filter_input = *v;
    return !filters || jx_eval(x, filters, v);
}

static bool exec_set(jx *x, const jnode *node) {
    jv v;
    if (node->type == N_SET)
        return jx_eval(x, node->b, &v) && jx_assign(x, node->a, v);
    return jx_capture(x, node->body, x->scope, &v) && apply_filters(x, node->b, &v) && jx_assign(x, node->a, v);
}

static bool make_macro(jx *x, const jnode *node, jv *out) {
    jmacro *macro = jx_alloc(x, 1, sizeof *macro);
    if (!macro)
        return false;
    *macro = (jmacro){node, x->scope};
    return jv_give(out, (jv){.kind = J_MACRO, .macro = macro});
}

static bool exec_call_block(jx *x, const jnode *node) {
    jv callee, caller, result;
    jargs args;
    if (!make_macro(x, node, &caller) || !jx_eval(x, node->a->a, &callee) || !jx_arguments(x, node->a, &args))
        return false;
    jv *names = jx_alloc(x, args.n_named + 1, sizeof *names), *named = jx_alloc(x, args.n_named + 1, sizeof *named);
    if (!names || !named)
        return false;
    for (size_t i = 0; i < args.n_named; i++) {
        names[i] = args.names[i];
        named[i] = args.named[i];
    }
    names[args.n_named] = (jv){.kind = J_STR, .s = x->template->symbols[SYM_CALLER]};
    named[args.n_named++] = caller;
    args.names = names;
    args.named = named;
    return jv_call(x, callee, &args, &result) && jv_write(x, result, x->out);
}

/* Every value is evaluated in the scope around the statement: no value sees the other new variables. */
static bool exec_with(jx *x, const jnode *node, jflow *flow) {
    jscope *outer = x->scope, *scope = jscope_new(x, outer);
    bool ok = scope != NULL;
    for (int32_t i = 0; ok && i < node->n_kids; i++) {
        jv v;
        ok = jx_eval(x, node->kids[i]->b, &v);
        x->scope = scope;
        ok = ok && jx_assign(x, node->kids[i]->a, v);
        x->scope = outer;
    }
    return ok && exec_in(x, node->body, scope, flow);
}

static bool exec(jx *x, const jnode *node, jflow *flow) {
    jv v;
    switch (node->type) {
    case N_DATA:
        return jtext_add(x, x->out, node->value.s->data, node->value.s->len);
    case N_OUTPUT:
        return jx_eval(x, node->a, &v) && jv_write(x, v, x->out);
    case N_BLOCK:
        return exec_block(x, node, flow);
    case N_FOR:
        return exec_for(x, node, flow);
    case N_IF:
        return exec_if(x, node, flow);
    case N_SET:
    case N_SET_BLOCK:
        return exec_set(x, node);
    case N_MACRO:
        return make_macro(x, node, &v) && jscope_set(x, node->symbol, v);
    case N_CALL_BLOCK:
        return exec_call_block(x, node);
    case N_FILTER_BLOCK:
        return jx_capture(x, node->body, x->scope, &v) && apply_filters(x, node->a, &v) && jv_write(x, v, x->out);
    case N_WITH:
        return exec_with(x, node, flow);
    case N_SCOPE:
        return exec_in(x, node->body, jscope_new(x, x->scope), flow);
    default:
        *flow = node->type == N_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
        return true;
    }
}

bool jx_exec(jx *x, const jnode *node, jflow *flow) {
    if (!jx_enter(x) || !jx_work(x, 0))
        return false;
    x->line = node->line;
    bool ok = exec(x, node, flow);
    jx_leave(x);
    return ok;
}
