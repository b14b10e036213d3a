/* coordinator/serving/jinja/ast.h - a parsed template.
 * Owns:    all nodes live in the template's arena.
 * Threads: constant after parsing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_JINJA_AST_H
#define MR_COORDINATOR_SERVING_JINJA_AST_H

#include "coordinator/serving/jinja/value.h"

typedef enum jnode_type {
    /* Expressions. */
    N_CONST,  /* value */
    N_NAME,   /* symbol */
    N_TUPLE,  /* kids */
    N_LIST,   /* kids */
    N_DICT,   /* kids: key, value, key, value … */
    N_UNARY,  /* op '-', '+' or '!' (not), a */
    N_BINARY, /* op: as in jv_arithmetic, a, b */
    N_CONCAT, /* kids */
    N_AND,    /* a, b */
    N_OR,
    N_COMPARE,   /* a, then kids: N_OPERAND with op and a */
    N_OPERAND,   /* op: '<' '>' 'l' (<=) 'g' (>=) '=' '!' 'i' (in) 'n' (not in) */
    N_COND,      /* a if b else c, which may be NULL */
    N_ATTRIBUTE, /* a.value */
    N_SUBSCRIPT, /* a[b] */
    N_SLICE,     /* a:b:c, each may be NULL; stands as b of an N_SUBSCRIPT */
    N_CALL,      /* a(args) */
    N_FILTER,    /* a | value(args); a is NULL at the head of a filter block */
    N_TEST,      /* a is value(args) */
    N_ARG,       /* an argument, a; op: 0, '*', '2' (**), or 'k' with its name as value */
    N_NSREF,     /* symbol.value as the target of an assignment: an attribute of a namespace */
    /* Statements. */
    N_DATA,         /* value: text outside of tags */
    N_OUTPUT,       /* a */
    N_BLOCK,        /* kids, one after the other */
    N_FOR,          /* for a in b if c: body, else */
    N_IF,           /* a: body, else */
    N_SET,          /* a = b */
    N_SET_BLOCK,    /* a = text of body through the filter b, which may be NULL */
    N_MACRO,        /* symbol, kids: N_PARAM; body */
    N_PARAM,        /* symbol = a, which may be NULL */
    N_CALL_BLOCK,   /* a: an N_CALL, which gets the macro of body and kids as `caller` */
    N_FILTER_BLOCK, /* body through a */
    N_WITH,         /* kids: N_SET; body */
    N_SCOPE,        /* body, in a scope of its own */
    N_BREAK,
    N_CONTINUE,
} jnode_type;

typedef struct jnode {
    uint8_t type;
    char op;
    bool takes_caller, takes_varargs, takes_kwargs; /* N_MACRO, N_CALL_BLOCK */
    bool recursive;                                 /* N_FOR */
    int32_t line;
    int32_t symbol;
    int32_t n_kids;
    struct jnode **kids;
    struct jnode *a, *b, *c, *body, *otherwise;
    jv value;
    const jbuiltin *builtin; /* N_FILTER, N_TEST; NULL: the name is unknown, an error when the node is evaluated */
} jnode;

/* Symbols that the interpreter itself uses. The names of the template get the numbers behind them. */
enum { SYM_LOOP, SYM_CALLER, SYM_VARARGS, SYM_KWARGS, N_FIXED_SYMBOLS };

struct mr_jinja {
    mr_arena *arena;
    jnode *root;
    jstr **symbols; /* [n_symbols] */
    int32_t n_symbols;
};

#endif
