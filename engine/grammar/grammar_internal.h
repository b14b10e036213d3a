/* engine/grammar/grammar_internal.h - the types that grammar.h only names.
 * Threads: as in grammar.h. */
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

/* A node of the tree of all tokens' bytes. Parents stand before children, and children are sorted by byte. */
typedef struct vocab_node {
    uint32_t skip; /* index of the first node that is not below this one */
    int32_t token; /* the lowest id whose bytes end here, or -1 */
    uint8_t byte;
    uint16_t depth; /* bytes from the root to here, 1 or more */
} vocab_node;

/* Two tokens with equal bytes. The tree has the first one. */
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
    vocab_tree all, odd; /* of all tokens, and of the tokens that are not plain (plain.h) */
    /* [PLAIN_MAX_CHARS + 1, mask words]: row k has the plain tokens of at most k characters. */
    uint64_t *plain;
    vocab_twin *twins;
    size_t n_twins;
};

/* Whether a mask may allow the token: the id is in the row of logits, stands for bytes, and is no control, unknown or
 * end token. Writes its bytes. */
bool grammar_vocab_bytes(const mr_grammar_vocab *v, int32_t id, mr_str *out_bytes);

#endif
