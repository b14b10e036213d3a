/* engine/grammar/grammar_internal.h - what is behind the names of grammar.h.
 * Threads: as there. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_GRAMMAR_INTERNAL_H
#define MR_ENGINE_GRAMMAR_GRAMMAR_INTERNAL_H

#include "engine/grammar/dfa.h"
#include "engine/grammar/grammar.h"

struct mr_grammar {
    char *source;
    size_t source_bytes;
    dfa automaton;
};

/* A node of the tree of all tokens' bytes; parents before children, children by byte. */
typedef struct vocab_node {
    uint32_t skip; /* index of the first node that is not below this one */
    int32_t token; /* the lowest id whose bytes end here, or -1 */
    uint8_t byte;
    uint16_t depth; /* bytes from the root to here, 1 or more */
} vocab_node;

/* Two tokens of equal bytes; the first is in the tree. */
typedef struct vocab_twin {
    int32_t first, other;
} vocab_twin;

typedef struct vocab_tree {
    vocab_node *nodes;
    uint32_t n;
} vocab_tree;

struct mr_grammar_vocab {
    const mr_tokenizer *tok;
    int32_t n_vocab;
    vocab_tree all, odd; /* of all tokens, and of those that are not plain (plain.h) */
    uint64_t *plain;     /* [PLAIN_MAX_CHARS + 1, mask words]: the plain tokens of at most so many characters */
    vocab_twin *twins;
    size_t n_twins;
};

/* The token may be used: it is in the row of logits, stands for bytes, and is no control, unknown or end token. */
bool grammar_vocab_bytes(const mr_grammar_vocab *v, int32_t id, mr_str *out_bytes);

#endif
