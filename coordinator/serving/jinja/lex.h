/* coordinator/serving/jinja/lex.h - splits a template into tokens. The white space that trim_blocks and lstrip_blocks
 * remove around tags is already removed.
 * Borrows: the context. The lexer reads a copy of the source in the context's arena, in which every newline is \n.
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
    bool line_starting; /* pos is at the start of a line: the last match ended with a newline */
    tok queued;         /* the tag behind a text, returned by the next call */
    bool has_queued;
    int n_brackets;
    char brackets[LEX_MAX_BRACKETS]; /* the closing bracket for each open one */
} lexer;

bool lex_init(lexer *l, jx *x, mr_str source);
bool lex_next(lexer *l, tok *out);

/* lex_literal.c: the number or string that starts at l->pos. */
bool lex_number(lexer *l, tok *out);
bool lex_string(lexer *l, tok *out);

#endif
