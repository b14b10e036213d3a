/* engine/grammar/gbnf.h - the text of a grammar, parsed into rules: trees of literals, classes, sequences, choices and
 * repeats.
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
#define GBNF_UNLIMITED UINT32_MAX /* max of a repeat without an upper bound */

typedef enum gbnf_kind {
    GBNF_LITERAL,  /* bytes[first .. first + n) */
    GBNF_CLASS,    /* one character in ranges[first .. first + n) */
    GBNF_RULE,     /* what rule `first` matches */
    GBNF_SEQUENCE, /* children[first .. first + n) one after another; the empty text if n is 0 */
    GBNF_CHOICE,   /* one of children[first .. first + n) */
    GBNF_REPEAT,   /* node `first`, min to max times */
} gbnf_kind;

/* Children have lower indices than their node. */
typedef struct gbnf_node {
    gbnf_kind kind;
    uint32_t first, n;
    uint32_t min, max;
} gbnf_node;

/* Code points from low to high, both included. The ranges of a class ascend, do not touch, and contain no
 * surrogates. */
typedef struct gbnf_range {
    uint32_t low, high;
} gbnf_range;

typedef struct gbnf_rule {
    mr_str name;
    uint32_t body; /* GBNF_NONE until the rule is defined */
    size_t at;     /* where the text first names the rule */
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
    uint32_t *slots; /* hash table of rules: index + 1, 0 for an empty slot */
} gbnf;

/* MR_E_FORMAT: malformed; the error text names the line. MR_E_TOO_LONG: a limit of grammar.h or of the parser. The
 * caller passes out to gbnf_deinit even after a failure. */
MR_MUST_USE mr_status gbnf_read(mr_str text, gbnf *out, mr_err *err);
void gbnf_deinit(gbnf *g);

/* In gbnf_chars.c. Reads one character of a literal or class at text[*at] and resolves escapes. Returns false for a
 * malformed character. */
bool mr_gbnf_char(mr_str text, size_t *at, uint32_t *out_code);
/* Sorts and joins n ranges in place. With `negated` the result is all other code points. Surrogates are removed. ranges
 * must have room for n + 2. Returns the new number of ranges. */
size_t mr_gbnf_normalise(gbnf_range *ranges, size_t n, bool negated);
/* Writes a byte of a literal as GBNF spells it. Returns the length, 1 to 4. */
size_t mr_gbnf_escape(char c, char out[8]);
/* Writes the UTF-8 bytes of a code point that is no surrogate. Returns their number, 1 to 4. */
size_t gbnf_utf8(uint32_t code, uint8_t out[4]);

#endif
