/* worker/stage/grammars.h - the grammars of a tail stage: the vocabulary that they are held against, and each grammar
 * compiled once for all sequences that have the same one. What sequences that have ended leave is kept for the next
 * ones, within bounds: a state remembers masks, and the requests of a batch mostly share one schema.
 * Owns:    all of it; a use belongs to one sequence until it is closed.
 * Threads: bound to the step thread. Opening compiles (0.1 to 5 ms, what is near the limits of a grammar up to 0.3 s)
 *          and allocates; masks and accepted tokens do neither. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_GRAMMARS_H
#define MR_WORKER_STAGE_GRAMMARS_H

#include "engine/gguf/gguf.h"
#include "engine/grammar/grammar.h"

typedef struct mr_grammars mr_grammars;

/* Reads the tokenizer of the file: some 0.1 s and 22 MiB for 128,000 tokens. MR_E_NOT_FOUND: it has none. */
MR_MUST_USE mr_status mr_grammars_create(const mr_gguf *gguf, int32_t n_vocab, mr_grammars **out, mr_err *err);
/* After all uses were closed. */
void mr_grammars_destroy(mr_grammars *all);

typedef struct mr_grammar_use {
    mr_grammar_state *state; /* at the start of the text when it is opened */
    struct mr_grammars_entry *entry;
    struct mr_grammar_use *next; /* of those that are kept */
} mr_grammar_use;

/* The errors of mr_grammar_unpack. */
MR_MUST_USE mr_status mr_grammars_open(mr_grammars *all, const uint8_t *packed, size_t n, mr_grammar_use **out,
                                       mr_err *err);
/* NULL is accepted. */
void mr_grammars_close(mr_grammars *all, mr_grammar_use *use);

#endif
