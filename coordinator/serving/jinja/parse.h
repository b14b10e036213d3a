/* coordinator/serving/jinja/parse.h - what the two halves of the parser share: statements (parse.c) and expressions
 * (parse_expr.c).
 * Threads: caller serialises.
 * Errors:  functions return NULL or false after jx_fail with MR_E_FORMAT, or with MR_E_TOO_LONG where tags are nested
 *          too deeply. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_JINJA_PARSE_H
#define MR_COORDINATOR_SERVING_JINJA_PARSE_H

#include "coordinator/serving/jinja/ast.h"
#include "coordinator/serving/jinja/lex.h"

enum { PARSE_MAX_DEPTH = 200 };

typedef struct parser {
    jx *x;
    lexer lex;
    tok now, next; /* the current token and, where has_next, the one after it */
    bool has_next;
    jlist *symbols;        /* J_STR, by number */
    int32_t *symbol_table; /* [symbol_cap]: numbers by hash, -1 for none */
    size_t symbol_cap;
    jnode *macro; /* the innermost open macro or call block; macro->otherwise is the next one outside of it */
    int32_t n_loops;
} parser;

typedef struct jnodes {
    jnode **items;
    int32_t n, cap;
} jnodes;

bool parse_advance(parser *p);
bool parse_fail(parser *p, const char *what); /* the error is `what`, then the current token */
static inline jnode *parse_fail_node(parser *p, const char *what) {
    parse_fail(p, what);
    return NULL;
}
static inline bool parse_at_op(const parser *p, char op) {
    return p->now.type == T_OP && p->now.op == op;
}
static inline bool parse_at_name(const parser *p, const char *name) {
    return p->now.type == T_NAME && jstr_is(p->now.value.s, name);
}
/* If the current token is the operator or name, advance by one token. out_was: whether it was. */
bool parse_skip_op(parser *p, char op, bool *out_was);
bool parse_skip_name(parser *p, const char *name, bool *out_was);
bool parse_expect_op(parser *p, char op);
bool parse_take_name(parser *p, jv *out);

jnode *parse_node(parser *p, jnode_type type);
jnode *parse_node_2(parser *p, jnode_type type, char op, jnode *a, jnode *b);
bool parse_push(parser *p, jnodes *list, jnode *item);
static inline jnode *parse_finish_list(jnode *node, const jnodes *list) {
    node->kids = list->items;
    node->n_kids = list->n;
    return node;
}
bool parse_symbol(parser *p, const jstr *name, int32_t *out);

/* parse_expr.c. stop: a name that ends the tuple, such as "in"; NULL for none. */
jnode *parse_tuple(parser *p, bool with_condition, const char *stop);
jnode *parse_expression(parser *p);
jnode *parse_filters(parser *p, jnode *node); /* node NULL (a filter block): the first filter stands without a | */
jnode *parse_target(parser *p, bool with_namespace, const char *stop);
jnode *parse_with_target(parser *p); /* a single target, no tuple */

#endif
