/* engine/grammar/dfa.h - the automaton of a grammar. Each rule is deterministic over bytes, and rules call each other.
 * A state may have bytes, calls and an end at once, so a text is read by following all readings that are possible
 * (readings.h).
 * Owns:    its arrays.
 * Threads: does not change once it is built. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_DFA_H
#define MR_ENGINE_GRAMMAR_DFA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/grammar/nfa.h"

/* State 0 is dead: it has no bytes, no calls and no end. */
enum { DFA_DEAD = 0 };

typedef enum dfa_flag {
    DFA_BYTES = 1 << 0, /* a byte leads to another state */
    DFA_CALLS = 1 << 1, /* a rule may start here */
    DFA_END = 1 << 2,   /* the rule may end here */
} dfa_flag;

typedef struct dfa_call {
    uint32_t rule;  /* index into rules */
    uint32_t start; /* the state in which the rule starts */
    uint32_t back;  /* the state to return to */
} dfa_call;

typedef struct dfa_rule {
    uint32_t start; /* DFA_DEAD: the rule is never called, or no text matches it */
    uint32_t named; /* the rule in the grammar's text that this rule is, or is a part of */
} dfa_rule;

typedef struct dfa {
    uint8_t class_of[256]; /* bytes of one class lead to the same states everywhere */
    uint32_t n_classes;
    size_t n_states;
    uint16_t *next;       /* [n_states, n_classes] */
    uint8_t *flags;       /* [n_states] */
    uint32_t *first_call; /* [n_states + 1], into calls */
    dfa_call *calls;
    dfa_rule *rules;
    size_t n_calls, n_rules;
    size_t cap_next, cap_flags, cap_first_call, cap_calls;
    uint32_t start; /* start of the rule root */
} dfa;

static inline uint32_t dfa_next(const dfa *d, uint32_t state, uint8_t byte) {
    return d->next[(size_t)state * d->n_classes + d->class_of[byte]];
}

/* How many steps compiling may still take. The limit amounts to some tenths of a second. */
typedef struct dfa_work {
    uint64_t left;
} dfa_work;

/* MR_E_TOO_LONG: a limit of grammar.h is exceeded, or compiling takes too many steps. The caller passes out to
 * dfa_deinit even after a failure. */
MR_MUST_USE mr_status dfa_build(const nfa *n, uint32_t root, dfa_work *work, dfa *out, mr_err *err);
/* In dfa_check.c. Removes states from which no end can be reached, and refuses rules that call themselves before they
 * read a byte. MR_E_INVALID: no text matches. MR_E_UNSUPPORTED: left recursion. MR_E_TOO_LONG: too many steps. */
MR_MUST_USE mr_status dfa_check(const gbnf *g, dfa_work *work, dfa *d, mr_err *err);
void dfa_deinit(dfa *d);

#endif
