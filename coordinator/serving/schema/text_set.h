/* coordinator/serving/schema/text_set.h - sets of texts as terms: characters, sequences, choices, repeats, and also
 * what a grammar cannot write: intersections, complements, look-ahead and edges of words. A set that needs these
 * becomes a deterministic automaton (schema_text.c) by derivatives (Brzozowski 1964): the derivative of a set by a
 * character is the set of what may follow that character. Equal terms exist once, and a term is an index into the
 * pool.
 *
 *     text_set set = text_both(p, text_repeat(p, TEXT_ANY, 2, 8), text_not(p, text_of(p, mr_str_from("no"))));
 *
 * Owns:    the pool owns all terms and classes.
 * Threads: caller serialises.
 * Errors:  the first failure stays in problem, and results are then TEXT_NONE. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SCHEMA_TEXT_SET_H
#define MR_COORDINATOR_SERVING_SCHEMA_TEXT_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/str.h"
#include "engine/grammar/gbnf.h"

typedef uint32_t text_set;

/* Terms that every pool has. */
enum { TEXT_NONE, TEXT_EMPTY, TEXT_ANY, TEXT_ALL, TEXT_START, TEXT_END, TEXT_EDGE, TEXT_NO_EDGE };
#define TEXT_UNLIMITED UINT32_MAX

typedef enum text_kind {
    TEXT_IS_NONE,     /* no text */
    TEXT_IS_EMPTY,    /* the empty text */
    TEXT_IS_CHARS,    /* one character of class a */
    TEXT_IS_SEQUENCE, /* a, then b */
    TEXT_IS_CHOICE,   /* a or b; b may be a choice again, a is none */
    TEXT_IS_BOTH,     /* a and b; in the same form */
    TEXT_IS_NOT,      /* all texts but a */
    TEXT_IS_REPEAT,   /* a, min to max times */
    TEXT_IS_AHEAD,    /* the rest of the text is in a */
    TEXT_IS_START,    /* nothing stands before */
    TEXT_IS_END,      /* nothing follows */
    TEXT_IS_EDGE,     /* an edge of a word (a is 0), or any other place (a is 1) */
    TEXT_IS_MULTIPLE, /* the rest of a number, see text_multiple */
} text_kind;

/* What stands before the present place. */
typedef enum text_before { TEXT_AT_START, TEXT_AFTER_OTHER, TEXT_AFTER_WORD } text_before;
enum { TEXT_EVERYWHERE = 7 }; /* the bits of all of these */

typedef struct text_term {
    uint8_t kind;
    uint8_t takes_empty; /* bits 1 << text_before: where the term takes an empty rest of the text */
    bool is_plain;       /* a regular expression without assertions */
    bool needs_before;   /* what the term takes depends on what stands before */
    uint16_t depth;      /* of nested terms that functions recurse into */
    uint32_t a, b;
    uint32_t min, max;
    uint32_t least, most; /* characters of the texts; TEXT_UNLIMITED: no bound */
    uint32_t next;        /* another term of the same hash */
} text_term;

typedef struct text_class {
    uint32_t first, n;  /* ranges[first .. first + n), as mr_gbnf_normalise leaves them */
    uint8_t is_written; /* bits 1 << text_form: the grammar has a rule for the class */
} text_class;

/* Of the multiples of a number: remainders are in one class if no digits behind them tell them apart. */
typedef struct text_divisor {
    uint32_t number, n_digits;
    uint16_t *class_of; /* [number]: the lowest remainder of the class */
} text_divisor;

typedef enum text_problem { TEXT_FINE, TEXT_TOO_LARGE, TEXT_NO_MEMORY } text_problem;

enum { TEXT_MAX_CATEGORIES = 16, TEXT_MAX_DIVISORS = 16, TEXT_MAX_DIVISOR = 10000, TEXT_MAX_REMAINDERS = 1000 };

typedef struct text_sets {
    text_term *terms;
    text_class *classes;
    gbnf_range *ranges;
    uint32_t *slots; /* for each hash: the last term of it */
    text_set *stack; /* of functions that collect terms */
    size_t n_terms, cap_terms, n_classes, cap_classes, n_ranges, cap_ranges, n_stack, cap_stack;
    text_divisor divisors[TEXT_MAX_DIVISORS];
    struct {
        uint32_t mask, class_id;
    } categories[TEXT_MAX_CATEGORIES];
    uint32_t n_divisors, n_categories;
    uint32_t words;      /* the class of the characters of words */
    uint64_t work, most; /* steps so far, and the limit of the present automaton */
    text_problem problem;
} text_sets;

/* Returns false without memory. deinit accepts {0}. */
bool text_sets_init(text_sets *p);
void text_sets_deinit(text_sets *p);
/* Begins the work for another set, and forgets TEXT_TOO_LARGE. Returns false after another failure, and if the pool has
 * used up the work that one schema may cost. */
bool text_sets_recover(text_sets *p);
/* Counts steps. Returns false, with TEXT_TOO_LARGE, when they are too many. */
bool text_spend(text_sets *p, uint64_t steps);
text_set text_fail(text_sets *p, text_problem problem);

/* The class of n ranges, which mr_gbnf_normalise has made. */
uint32_t text_class_of(text_sets *p, const gbnf_range *ranges, size_t n);
bool text_class_has(const text_sets *p, uint32_t class_id, uint32_t code);
/* The class of the characters in the Unicode categories of utf8proc whose bits are in mask. */
uint32_t text_category(text_sets *p, uint32_t mask);

/* One character of a class. */
text_set text_chars(text_sets *p, uint32_t class_id);
/* One text of UTF-8. */
text_set text_of(text_sets *p, mr_str utf8);
/* One of n texts of UTF-8. */
text_set text_one_of(text_sets *p, const mr_str *texts, size_t n);
/* a must not be a result of text_both, text_not or text_multiple. */
text_set text_sequence(text_sets *p, text_set a, text_set b);
text_set text_choice(text_sets *p, text_set a, text_set b);
text_set text_both(text_sets *p, text_set a, text_set b);
text_set text_not(text_sets *p, text_set a);
text_set text_repeat(text_sets *p, text_set a, uint32_t min, uint32_t max);
/* Matches where the rest of the text is in a, and takes nothing of it. */
text_set text_ahead(text_sets *p, text_set a);
/* The texts of a that have min to max characters. */
text_set text_lengths(text_sets *p, text_set a, uint32_t min, uint32_t max);
/* The numbers that are multiples of number / 10^n_digits, among texts that are decimal numbers. TEXT_TOO_LARGE: number
 * is above TEXT_MAX_DIVISOR, or has more than TEXT_MAX_REMAINDERS classes of remainders. */
text_set text_multiple(text_sets *p, uint32_t number, uint32_t n_digits);

/* What may follow the character `code` in the texts of a. */
text_set text_derive(text_sets *p, text_set a, uint32_t code, text_before before);
text_set text_derive_multiple(text_sets *p, text_set a, uint32_t code);
/* The term of this kind and these parts, which is made if it is new. */
text_set text_intern(text_sets *p, text_term t);
/* Whether the UTF-8 text is in the set. */
bool text_has(text_sets *p, text_set a, mr_str utf8);

#endif
