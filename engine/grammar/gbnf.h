/* engine/grammar/gbnf.h - the text of a grammar as rules: trees of literals, classes, sequences, choices and repeats.
 * Owns:    gbnf owns its arrays; names borrow the text.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_GBNF_H
#define MR_ENGINE_GRAMMAR_GBNF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/base/str.h"

#define GBNF_NONE UINT32_MAX      /* no node, no rule */
#define GBNF_UNLIMITED UINT32_MAX /* the end of a repeat that has none */

typedef enum gbnf_kind {
    GBNF_LITERAL,  /* bytes[first .. first + n) */
    GBNF_CLASS,    /* one character of ranges[first .. first + n) */
    GBNF_RULE,     /* rule `first` */
    GBNF_SEQUENCE, /* children[first .. first + n) one after another; n 0: the empty text */
    GBNF_CHOICE,   /* one of children[first .. first + n) */
    GBNF_REPEAT,   /* node `first`, min to max times */
} gbnf_kind;

/* Children have lower indices than their node. */
typedef struct gbnf_node {
    gbnf_kind kind;
    uint32_t first, n;
    uint32_t min, max;
} gbnf_node;

/* Code points, both included. Those of a class ascend, do not touch, and have no surrogates. */
typedef struct gbnf_range {
    uint32_t low, high;
} gbnf_range;

typedef struct gbnf_rule {
    mr_str name;
    uint32_t body; /* GBNF_NONE while it is only referred to */
    size_t at;     /* where in the text it is first named */
} gbnf_rule;

typedef struct gbnf {
    gbnf_node *nodes;
    uint32_t *children;
    uint8_t *bytes;
    gbnf_range *ranges;
    gbnf_rule *rules;
    size_t n_nodes, n_children, n_bytes, n_ranges, n_rules;
    size_t cap_nodes, cap_children, cap_bytes, cap_ranges, cap_rules;
    uint32_t root;
    uint32_t *slots; /* hash table of rules: index + 1, 0 for none */
} gbnf;

/* MR_E_FORMAT, MR_E_TOO_LONG. out is to be given to gbnf_deinit after failure too. */
MR_MUST_USE mr_status gbnf_read(mr_str text, gbnf *out, mr_err *err);
void gbnf_deinit(gbnf *g);

/* gbnf_chars.c: one character of a literal or class at text[*at], escapes resolved; false: malformed. */
bool mr_gbnf_char(mr_str text, size_t *at, uint32_t *out_code);
/* Sorts and joins n ranges in place, and turns them into all others where `negated`; room for n + 2 ranges is there.
 * Surrogates are taken out. Returns the new number. */
size_t mr_gbnf_normalise(gbnf_range *ranges, size_t n, bool negated);
/* A byte of a literal as GBNF spells it, with an end; returns its length, 1 to 4. */
size_t mr_gbnf_escape(char c, char out[8]);
/* Bytes of a code point that is no surrogate; 1 to 4. */
size_t gbnf_utf8(uint32_t code, uint8_t out[4]);

#endif
