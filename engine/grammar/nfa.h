/* engine/grammar/nfa.h - the rules of a grammar as nondeterministic automata over bytes. Small rules that do not
 * contain themselves are copied to where they are used; other rules are called.
 * Owns:    its arrays.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_NFA_H
#define MR_ENGINE_GRAMMAR_NFA_H

#include <stdint.h>

#include "engine/grammar/gbnf.h"

#define NFA_NONE UINT32_MAX
enum {
    NFA_MAX_STATES = 1 << 19,
    NFA_MAX_EDGES = 1 << 21,
};

typedef enum nfa_edge_kind { NFA_BYTES, NFA_EMPTY, NFA_CALL } nfa_edge_kind;

typedef struct nfa_edge {
    uint8_t kind;
    uint8_t low, high;     /* NFA_BYTES: both included */
    uint32_t rule;         /* NFA_CALL: index into rules */
    uint32_t target, next; /* next: another edge of the same state, or NFA_NONE */
} nfa_edge;

typedef struct nfa_rule {
    uint32_t body;       /* a node of the grammar */
    uint32_t start, end; /* states; NFA_NONE before the rule is built */
    uint32_t named;      /* the rule in the grammar's text that this rule is, or is a part of */
} nfa_rule;

typedef struct nfa {
    uint32_t *first_edge; /* the first edge of each state, or NFA_NONE */
    nfa_edge *edges;
    nfa_rule *rules; /* the rules of the grammar, then parts of rules */
    size_t n_states, n_edges, n_rules;
    size_t cap_states, cap_edges, cap_rules;
} nfa;

/* Builds root and all rules that it calls. MR_E_TOO_LONG: too many states or edges. The caller passes out to nfa_deinit
 * even after a failure. */
MR_MUST_USE mr_status nfa_build(const gbnf *g, nfa *out, mr_err *err);
void nfa_deinit(nfa *n);

#endif
