/* worker/stage/grammars.h - the compiled grammars of a tail stage. Sequences with equal grammars share one compiled
 * grammar. A use is the grammar state of one sequence. When a sequence ends, its use is kept for later sequences, up to
 * a limit, because a state caches token masks, and the requests of a batch mostly share one schema. Where memory lacks,
 * all that no sequence uses is freed.
 * Owns:    vocabulary, grammars and uses. A use belongs to one sequence until it is closed.
 * Threads: bound to the step thread. Opening compiles the grammar (0.1 to 5 ms; up to 0.3 s near the limits of a
 *          grammar) and allocates. Masks and accepted tokens do neither. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_GRAMMARS_H
#define MR_WORKER_STAGE_GRAMMARS_H

#include "engine/gguf/gguf.h"
#include "engine/grammar/grammar.h"

typedef struct mr_grammars mr_grammars;

/* Reads the tokenizer of the file: some 0.1 s and 22 MiB for 128,000 tokens. MR_E_NOT_FOUND: the file has none. */
MR_MUST_USE mr_status mr_grammars_create(const mr_gguf *gguf, int32_t n_vocab, mr_grammars **out, mr_err *err);
/* All uses must be closed. */
void mr_grammars_destroy(mr_grammars *all);

typedef struct mr_grammar_use {
    mr_grammar_state *state; /* at the start of the text after mr_grammars_open */
    struct mr_grammars_entry *entry;
    struct mr_grammar_use *next; /* in the list of kept uses */
} mr_grammar_use;

/* packed: the bytes of the grammar in OpenSequence. Errors: those of mr_grammar_unpack. */
MR_MUST_USE mr_status mr_grammars_open(mr_grammars *all, const uint8_t *packed, size_t n, mr_grammar_use **out,
                                       mr_err *err);
/* NULL is accepted. */
void mr_grammars_close(mr_grammars *all, mr_grammar_use *use);

#endif
