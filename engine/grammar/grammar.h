/* engine/grammar/grammar.h - texts that follow a grammar in GBNF: its automaton over bytes, and the mask of the tokens
 * that may come next.
 *
 * GBNF is the dialect of llama.cpp: rules `name ::= ...` with root as the start, "literals", [classes] with ranges,
 * negation and escapes (\n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH, which are code points), `.` for any
 * character, ( groups ), | alternatives, ? * + {m} {m,} {m,n}, and # comments. Classes are over code points. Left
 * recursion is refused by name.
 *
 * A grammar is made once (mr_grammar_parse), travels packed (mr_grammar_pack), and is opened for a sequence with
 * mr_grammar_state_create. For each token: mr_grammar_state_mask, sample, mr_grammar_state_accept.
 *
 * Threads: a grammar and a vocabulary do not change: any thread may use them, but not while they are destroyed. The
 *          caller serialises the calls of one state.
 * Errors:  any mr_status function may return MR_E_NO_MEMORY; others are named at the function. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_GRAMMAR_H
#define MR_ENGINE_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/text/buffers.h"
#include "engine/text/tokenizer.h"

enum {
    MR_GRAMMAR_MAX_TEXT_BYTES = 1 << 20, /* of a GBNF text, also of one that a schema gives, and of a packed grammar */
    MR_GRAMMAR_MAX_RULES = 8192,
    MR_GRAMMAR_MAX_STATES = 1 << 16,  /* of the automaton */
    MR_GRAMMAR_MAX_REPEAT = 1 << 15,  /* m and n of {m,n} */
    MR_GRAMMAR_MAX_DEPTH = 2048,      /* rules inside each other in a text */
    MR_GRAMMAR_MAX_READINGS = 256,    /* ways to read the text so far that are still open */
    MR_GRAMMAR_MAX_TOKEN_BYTES = 256, /* longer tokens are never allowed */
};

typedef struct mr_grammar mr_grammar;

/* Compiles GBNF. MR_E_FORMAT: it is malformed; the text names the line. MR_E_UNSUPPORTED: left recursion.
 * MR_E_INVALID: no text matches it. MR_E_TOO_LONG: a limit above, or it takes too much time or memory to compile. */
MR_MUST_USE mr_status mr_grammar_parse(mr_str gbnf, mr_grammar **out, mr_err *err);
void mr_grammar_destroy(mr_grammar *g);

/* The grammar as bytes for the wire and the journal, freed with mr_free. */
MR_MUST_USE mr_status mr_grammar_pack(const mr_grammar *g, uint8_t **out_bytes, size_t *out_n, mr_err *err);
/* Trusts nothing: the errors of mr_grammar_parse, MR_E_FORMAT for other bytes. Costs what parsing costs. */
MR_MUST_USE mr_status mr_grammar_unpack(const uint8_t *bytes, size_t n, mr_grammar **out, mr_err *err);
/* The GBNF that it was made from; lives as long as the grammar. */
mr_str mr_grammar_source(const mr_grammar *g);

typedef struct mr_grammar_vocab mr_grammar_vocab;

/* The bytes of all tokens as a tree. n_vocab: logits of a row; those beyond the tokenizer's tokens are never allowed,
 * nor are control and unknown tokens, and tokens without bytes. Borrows tok. */
MR_MUST_USE mr_status mr_grammar_vocab_create(const mr_tokenizer *tok, int32_t n_vocab, mr_grammar_vocab **out,
                                              mr_err *err);
void mr_grammar_vocab_destroy(mr_grammar_vocab *v);
/* Words of 64 bits that a mask has: ceil(n_vocab / 64). */
size_t mr_grammar_vocab_mask_words(const mr_grammar_vocab *v);

typedef struct mr_grammar_state mr_grammar_state;

/* At the start of the text. Allocates all that the state will need (some 0.8 MiB and 32 masks). Borrows both. */
MR_MUST_USE mr_status mr_grammar_state_create(const mr_grammar *g, const mr_grammar_vocab *v, mr_grammar_state **out,
                                              mr_err *err);
void mr_grammar_state_destroy(mr_grammar_state *s);
/* Back to the start of the text. */
void mr_grammar_state_reset(mr_grammar_state *s);

/* Takes the next token; allocates nothing. An end token is taken where the text is complete, and only end tokens
 * after it. MR_E_INVALID: the grammar does not allow it here; MR_E_TOO_LONG: nested deeper than MR_GRAMMAR_MAX_DEPTH,
 * or more readings than MR_GRAMMAR_MAX_READINGS. The state is then as it was. */
MR_MUST_USE mr_status mr_grammar_state_accept(mr_grammar_state *s, int32_t id, mr_err *err);
/* The same for bytes that are no token, or several. */
MR_MUST_USE mr_status mr_grammar_state_accept_bytes(mr_grammar_state *s, mr_str bytes, mr_err *err);
/* Sets the bits of all tokens that may come next (bit id % 64 of word id / 64) and clears the others; allocates
 * nothing. The end tokens' bits are set where the text is complete, and after an end no others. No bit is set where
 * the vocabulary lacks the bytes that must follow. MR_E_TOO_LONG: as above, or the grammar is so ambiguous that the
 * mask would take too long; the bits are then all clear. A token whose bit is set may still be refused by accept with
 * MR_E_TOO_LONG, where the limits of depth and readings are near. */
MR_MUST_USE mr_status mr_grammar_state_mask(mr_grammar_state *s, uint64_t *bits, mr_err *err);
/* The text may end here. */
bool mr_grammar_state_is_complete(const mr_grammar_state *s);
/* Nothing but an end may follow. */
bool mr_grammar_state_is_finished(const mr_grammar_state *s);

#endif
