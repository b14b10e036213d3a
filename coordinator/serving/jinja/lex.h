/* coordinator/serving/jinja/lex.h - the tokens of a template, one after the other, with white space around tags already
 * taken away.
 * Borrows: context and source, whose newlines are all \n (lex_init makes it so, in the context's arena).
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_JINJA_LEX_H
#define MR_COORDINATOR_SERVING_JINJA_LEX_H

#include "coordinator/serving/jinja/value.h"

typedef enum tok_type {
    T_END,
    T_DATA, /* value: text outside of tags */
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,   /* value */
    T_STRING, /* value, escapes resolved */
    T_NUMBER, /* value: int or float */
    T_OP,     /* op: the character, or 'f' for //, 'p' for **, 'e' for ==, '!' for !=, 'g' for >=, 'l' for <= */
} tok_type;

typedef struct tok {
    tok_type type;
    char op;
    int32_t line;
    jv value;
} tok;

enum { LEX_MAX_BRACKETS = 256 };

typedef struct lexer {
    jx *x;
    const char *s; /* terminated by a zero */
    size_t n, pos;
    int32_t line;
    enum { LEX_ROOT, LEX_BLOCK, LEX_VARIABLE } mode;
    bool line_starting; /* the last match ended with a newline */
    tok queued;         /* the tag after a text */
    bool has_queued;
    int n_brackets;
    char brackets[LEX_MAX_BRACKETS]; /* those that close what is open */
} lexer;

bool lex_init(lexer *l, jx *x, mr_str source);
bool lex_next(lexer *l, tok *out);

/* lex_literal.c: the number or string that starts at l->pos. */
bool lex_number(lexer *l, tok *out);
bool lex_string(lexer *l, tok *out);

#endif
