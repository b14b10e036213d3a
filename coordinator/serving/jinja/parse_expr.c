/* coordinator/serving/jinja/parse_expr.c - parses the expressions of a template by recursive descent, with one function
 * for each level of precedence. Statements are in parse.c. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/parse.h"

static jnode *parse_unary(parser *p, bool with_filter);
static jnode *parse_or(parser *p);

/* Reads the items of a list ([a, b]) or of a dict ({k: v}) up to `close`. */
static jnode *parse_display(parser *p, jnode_type type, char close) {
    jnodes items = {0};
    bool done;
    jnode *node = parse_node(p, type);
    if (!node || !parse_advance(p))
        return NULL;
    for (;;) {
        if (!parse_skip_op(p, close, &done))
            return NULL;
        if (done)
            return parse_finish_list(node, &items);
        if (items.n && (!parse_expect_op(p, ',') || !parse_skip_op(p, close, &done)))
            return NULL;
        if (done)
            return parse_finish_list(node, &items);
        if (!parse_push(p, &items, parse_expression(p)))
            return NULL;
        if (type == N_DICT && (!parse_expect_op(p, ':') || !parse_push(p, &items, parse_expression(p))))
            return NULL;
    }
}

static jnode *parse_name(parser *p) {
    jnode *node = parse_node(p, N_CONST);
    if (!node)
        return NULL;
    jstr *name = p->now.value.s;
    if (jstr_is(name, "true") || jstr_is(name, "True")) {
        node->value = jv_bool(true);
    } else if (jstr_is(name, "false") || jstr_is(name, "False")) {
        node->value = jv_bool(false);
    } else if (jstr_is(name, "none") || jstr_is(name, "None")) {
        node->value = jv_none();
    } else {
        node->type = N_NAME;
        if (!parse_symbol(p, name, &node->symbol))
            return NULL;
        for (jnode *m = p->macro; m; m = m->otherwise) {
            m->takes_caller |= node->symbol == SYM_CALLER;
            m->takes_varargs |= node->symbol == SYM_VARARGS;
            m->takes_kwargs |= node->symbol == SYM_KWARGS;
        }
    }
    return parse_advance(p) ? node : NULL;
}

static jnode *parse_literal(parser *p) {
    jnode *node = parse_node(p, N_CONST);
    if (!node)
        return NULL;
    node->value = p->now.value;
    bool is_string = p->now.type == T_STRING;
    if (!parse_advance(p))
        return NULL;
    while (is_string && p->now.type == T_STRING) {
        jtext text = {0};
        const jstr *a = node->value.s, *b = p->now.value.s;
        if (!jtext_add(p->x, &text, a->data, a->len) || !jtext_add(p->x, &text, b->data, b->len) ||
            !jv_text(p->x, &text, &node->value) || !parse_advance(p))
            return NULL;
    }
    return node;
}

static jnode *parse_primary(parser *p) {
    if (p->now.type == T_NAME)
        return parse_name(p);
    if (p->now.type == T_STRING || p->now.type == T_NUMBER)
        return parse_literal(p);
    if (parse_at_op(p, '[') || parse_at_op(p, '{')) {
        bool list = parse_at_op(p, '[');
        return parse_display(p, list ? N_LIST : N_DICT, list ? ']' : '}');
    }
    if (!parse_at_op(p, '('))
        return parse_fail_node(p, "expected an expression");
    if (!parse_advance(p))
        return NULL;
    jnode *node = parse_at_op(p, ')') ? parse_node(p, N_TUPLE) : parse_tuple(p, true, NULL);
    return node && parse_expect_op(p, ')') ? node : NULL;
}

static jnode *parse_argument(parser *p) {
    jnode *arg = parse_node(p, N_ARG);
    bool star, double_star = false;
    if (!arg || !parse_skip_op(p, '*', &star) || (!star && !parse_skip_op(p, 'p', &double_star)))
        return NULL;
    arg->op = star ? '*' : double_star ? '2' : 0;
    if (!arg->op && p->now.type == T_NAME) {
        if (!p->has_next && !lex_next(&p->lex, &p->next))
            return NULL;
        p->has_next = true;
        if (p->next.type == T_OP && p->next.op == '=') {
            arg->op = 'k';
            arg->value = p->now.value;
            if (!parse_advance(p) || !parse_advance(p))
                return NULL;
        }
    }
    arg->a = parse_expression(p);
    return arg->a ? arg : NULL;
}

/* Reads arguments, such as (a, *b, c=d, **e), into the kids of node. */
static bool parse_arguments(parser *p, jnode *node) {
    jnodes args = {0};
    bool done, named = false;
    if (!parse_expect_op(p, '('))
        return false;
    for (;;) {
        if (!parse_skip_op(p, ')', &done))
            return false;
        if (!done && args.n && (!parse_expect_op(p, ',') || !parse_skip_op(p, ')', &done)))
            return false;
        if (done)
            break;
        jnode *arg = parse_argument(p);
        if (!arg || !parse_push(p, &args, arg))
            return false;
        if (named && (!arg->op || arg->op == '*'))
            return parse_fail(p, "an argument without a name follows one with a name");
        named |= arg->op == 'k' || arg->op == '2';
    }
    parse_finish_list(node, &args);
    return true;
}

static jnode *parse_call(parser *p, jnode *callee) {
    jnode *node = parse_node_2(p, N_CALL, 0, callee, NULL);
    return node && parse_arguments(p, node) ? node : NULL;
}

/* Reads one index or slice between [ and ]. Several of them are separated by commas. */
static jnode *parse_subscribed(parser *p) {
    jnode *part[3] = {NULL, NULL, NULL};
    bool colon;
    if (!parse_at_op(p, ':')) {
        part[0] = parse_expression(p);
        if (!part[0] || !parse_at_op(p, ':'))
            return part[0];
    }
    if (!parse_advance(p))
        return NULL;
    for (int i = 1; i < 3; i++) {
        if (!parse_at_op(p, ':') && !parse_at_op(p, ']') && !parse_at_op(p, ',')) {
            part[i] = parse_expression(p);
            if (!part[i])
                return NULL;
        }
        if (i == 1 && !parse_skip_op(p, ':', &colon))
            return NULL;
        if (i == 1 && !colon)
            break;
    }
    jnode *slice = parse_node_2(p, N_SLICE, 0, part[0], part[1]);
    if (slice)
        slice->c = part[2];
    return slice;
}

static jnode *parse_subscript(parser *p, jnode *object) {
    bool dot = parse_at_op(p, '.');
    jnode *node = parse_node_2(p, dot ? N_ATTRIBUTE : N_SUBSCRIPT, 0, object, NULL);
    if (!node || !parse_advance(p))
        return NULL;
    if (dot && p->now.type == T_NAME)
        return parse_take_name(p, &node->value) ? node : NULL;
    if (dot) {
        if (p->now.type != T_NUMBER || p->now.value.kind != J_INT)
            return parse_fail_node(p, "expected name or number");
        node->type = N_SUBSCRIPT;
        node->b = parse_literal(p);
        return node->b ? node : NULL;
    }
    jnodes parts = {0};
    while (!parse_at_op(p, ']'))
        if ((parts.n && !parse_expect_op(p, ',')) || !parse_push(p, &parts, parse_subscribed(p)))
            return NULL;
    if (!parse_advance(p))
        return NULL;
    if (parts.n == 1) {
        node->b = parts.items[0];
    } else {
        node->b = parse_node(p, N_TUPLE);
        if (!node->b)
            return NULL;
        parse_finish_list(node->b, &parts);
    }
    return node;
}

static jnode *parse_postfix(parser *p, jnode *node) {
    while (node) {
        if (parse_at_op(p, '.') || parse_at_op(p, '['))
            node = parse_subscript(p, node);
        else if (parse_at_op(p, '('))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

/* Reads a name with dots in it, such as a.b.c. */
static bool parse_dotted(parser *p, jv *out) {
    bool dot;
    jtext text = {0};
    do {
        jv part;
        if (!parse_take_name(p, &part) || !jtext_add(p->x, &text, part.s->data, part.s->len) ||
            !parse_skip_op(p, '.', &dot) || (dot && !jtext_add(p->x, &text, ".", 1)))
            return false;
    } while (dot);
    return jv_text(p->x, &text, out);
}

jnode *parse_filters(parser *p, jnode *node) {
    for (bool first = !node; first || parse_at_op(p, '|'); first = false) {
        if (!first && !parse_advance(p))
            return NULL;
        node = parse_node_2(p, N_FILTER, 0, node, NULL);
        if (!node || !parse_dotted(p, &node->value))
            return NULL;
        node->builtin = jfilter_find(node->value.s->data, node->value.s->len);
        if (parse_at_op(p, '(') && !parse_arguments(p, node))
            return NULL;
    }
    return node;
}

/* A test may have one argument without brackets: `is divisibleby 3`. */
static bool parse_test_arguments(parser *p, jnode *test) {
    if (parse_at_op(p, '('))
        return parse_arguments(p, test);
    bool value = p->now.type == T_STRING || p->now.type == T_NUMBER || p->now.type == T_NAME || parse_at_op(p, '[') ||
                 parse_at_op(p, '{');
    if (!value || parse_at_name(p, "else") || parse_at_name(p, "or") || parse_at_name(p, "and"))
        return true;
    if (parse_at_name(p, "is"))
        return parse_fail(p, "tests cannot be chained with is");
    jnode *arg = parse_node(p, N_ARG);
    jnodes args = {0};
    if (!arg)
        return false;
    arg->a = parse_postfix(p, parse_primary(p));
    if (!arg->a || !parse_push(p, &args, arg))
        return false;
    parse_finish_list(test, &args);
    return true;
}

static jnode *parse_test(parser *p, jnode *node) {
    bool negated;
    if (!parse_advance(p) || !parse_skip_name(p, "not", &negated))
        return NULL;
    jnode *test = parse_node_2(p, N_TEST, 0, node, NULL);
    if (!test || !parse_dotted(p, &test->value) || !parse_test_arguments(p, test))
        return NULL;
    test->builtin = jtest_find(test->value.s->data, test->value.s->len);
    return negated ? parse_node_2(p, N_UNARY, '!', test, NULL) : test;
}

static jnode *parse_unary_inner(parser *p, bool with_filter) {
    jnode *node;
    if (parse_at_op(p, '-') || parse_at_op(p, '+')) {
        char op = p->now.op;
        if (!parse_advance(p))
            return NULL;
        node = parse_unary(p, false);
        node = node ? parse_node_2(p, N_UNARY, op, node, NULL) : NULL;
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    while (node && with_filter) {
        if (parse_at_op(p, '|'))
            node = parse_filters(p, node);
        else if (parse_at_name(p, "is"))
            node = parse_test(p, node);
        else if (parse_at_op(p, '('))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

static jnode *parse_unary(parser *p, bool with_filter) {
    if (!jx_enter(p->x))
        return NULL;
    jnode *node = parse_unary_inner(p, with_filter);
    jx_leave(p->x);
    return node;
}

/* Reads one level of left-associative operators. ops: the operators. part: reads an operand. */
static jnode *parse_left(parser *p, const char *ops, jnode *(*part)(parser *)) {
    jnode *left = part(p);
    while (left && p->now.type == T_OP && strchr(ops, p->now.op)) {
        char op = p->now.op;
        if (!parse_advance(p))
            return NULL;
        jnode *right = part(p);
        left = right ? parse_node_2(p, N_BINARY, op, left, right) : NULL;
    }
    return left;
}

static jnode *parse_operand(parser *p) {
    return parse_unary(p, true);
}

static jnode *parse_power(parser *p) {
    return parse_left(p, "p", parse_operand);
}

static jnode *parse_product(parser *p) {
    return parse_left(p, "*/f%", parse_power);
}

static jnode *parse_concat(parser *p) {
    jnode *first = parse_product(p);
    jnodes parts = {0};
    if (!first || !parse_at_op(p, '~'))
        return first;
    jnode *node = parse_node(p, N_CONCAT);
    if (!node || !parse_push(p, &parts, first))
        return NULL;
    while (parse_at_op(p, '~'))
        if (!parse_advance(p) || !parse_push(p, &parts, parse_product(p)))
            return NULL;
    return parse_finish_list(node, &parts);
}

static jnode *parse_sum(parser *p) {
    return parse_left(p, "+-", parse_concat);
}

/* Reads a comparison operator, if the current token is one. out: the operator as in N_OPERAND, otherwise 0. */
static bool parse_comparison_op(parser *p, char *out) {
    *out = 0;
    if (p->now.type == T_OP && strchr("e!<>lg", p->now.op)) {
        *out = p->now.op == 'e' ? '=' : p->now.op;
        return parse_advance(p);
    }
    if (parse_at_name(p, "in")) {
        *out = 'i';
        return parse_advance(p);
    }
    if (!parse_at_name(p, "not"))
        return true;
    if (!p->has_next && !lex_next(&p->lex, &p->next))
        return false;
    p->has_next = true;
    if (p->next.type != T_NAME || !jstr_is(p->next.value.s, "in"))
        return true;
    *out = 'n';
    return parse_advance(p) && parse_advance(p);
}

static jnode *parse_comparison(parser *p) {
    jnode *first = parse_sum(p);
    jnodes operands = {0};
    char op;
    while (first) {
        if (!parse_comparison_op(p, &op))
            return NULL;
        if (!op)
            break;
        jnode *right = parse_sum(p);
        if (!right || !parse_push(p, &operands, parse_node_2(p, N_OPERAND, op, right, NULL)))
            return NULL;
    }
    if (!first || !operands.n)
        return first;
    jnode *node = parse_node_2(p, N_COMPARE, 0, first, NULL);
    return node ? parse_finish_list(node, &operands) : NULL;
}

static jnode *parse_not(parser *p) {
    int n = 0;
    for (; parse_at_name(p, "not"); n++)
        if (!parse_advance(p))
            return NULL;
    jnode *node = parse_comparison(p);
    while (node && n--)
        node = parse_node_2(p, N_UNARY, '!', node, NULL);
    return node;
}

static jnode *parse_and(parser *p) {
    jnode *left = parse_not(p);
    while (left && parse_at_name(p, "and")) {
        jnode *right = parse_advance(p) ? parse_not(p) : NULL;
        left = right ? parse_node_2(p, N_AND, 0, left, right) : NULL;
    }
    return left;
}

static jnode *parse_or(parser *p) {
    jnode *left = parse_and(p);
    while (left && parse_at_name(p, "or")) {
        jnode *right = parse_advance(p) ? parse_and(p) : NULL;
        left = right ? parse_node_2(p, N_OR, 0, left, right) : NULL;
    }
    return left;
}

static jnode *parse_condition(parser *p) {
    jnode *value = parse_or(p);
    bool otherwise;
    while (value && parse_at_name(p, "if")) {
        jnode *test = parse_advance(p) ? parse_or(p) : NULL;
        value = test ? parse_node_2(p, N_COND, 0, value, test) : NULL;
        if (!value || !parse_skip_name(p, "else", &otherwise))
            return NULL;
        if (otherwise && !(value->c = parse_expression(p)))
            return NULL;
    }
    return value;
}

jnode *parse_expression(parser *p) {
    if (!jx_enter(p->x))
        return NULL;
    jnode *node = parse_condition(p);
    jx_leave(p->x);
    return node;
}

static bool at_tuple_end(const parser *p, const char *stop) {
    return p->now.type == T_VARIABLE_END || p->now.type == T_BLOCK_END || parse_at_op(p, ')') ||
           (stop && parse_at_name(p, stop));
}

/* Reads items with commas between them into an N_TUPLE. part: reads an item. A single item without a comma is returned
 * as it is. */
static jnode *parse_items(parser *p, jnode *(*part)(parser *), const char *stop) {
    jnodes items = {0};
    bool comma = false;
    while (!at_tuple_end(p, stop)) {
        if (!parse_push(p, &items, part(p)) || !parse_skip_op(p, ',', &comma))
            return NULL;
        if (!comma)
            break;
    }
    if (items.n == 1 && !comma)
        return items.items[0];
    if (!items.n)
        return parse_fail_node(p, "expected an expression");
    jnode *node = parse_node(p, N_TUPLE);
    return node ? parse_finish_list(node, &items) : NULL;
}

jnode *parse_tuple(parser *p, bool with_condition, const char *stop) {
    return parse_items(p, with_condition ? parse_expression : parse_or, stop);
}

static jnode *parse_namespace_target(parser *p) {
    jnode *node = parse_primary(p);
    if (!node || node->type != N_NAME || !parse_at_op(p, '.'))
        return node;
    node->type = N_NSREF;
    return parse_advance(p) && parse_take_name(p, &node->value) ? node : NULL;
}

/* Whether a value can be assigned to the node. The recursion is bounded by the nesting limit of the parser. */
static bool can_assign(const jnode *target) {
    if (target->type == N_NSREF || target->type == N_NAME)
        return true;
    bool ok = target->type == N_TUPLE && target->n_kids;
    for (int32_t i = 0; ok && i < target->n_kids; i++)
        ok = can_assign(target->kids[i]);
    return ok;
}

static jnode *check_target(parser *p, jnode *node) {
    if (!node || can_assign(node))
        return node;
    return parse_fail_node(p, "cannot assign to what stands before");
}

jnode *parse_with_target(parser *p) {
    return check_target(p, parse_primary(p));
}

jnode *parse_target(parser *p, bool with_namespace, const char *stop) {
    return check_target(p, parse_items(p, with_namespace ? parse_namespace_target : parse_primary, stop));
}
