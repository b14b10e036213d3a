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
    MR_GRAMMAR_MAX_TEXT_BYTES = 1 << 20, /* of a GBNF text, also of one made from a schema, and of a packed grammar */
    MR_GRAMMAR_MAX_RULES = 8192,
    MR_GRAMMAR_MAX_STATES = 1 << 16,  /* of the automaton */
    MR_GRAMMAR_MAX_REPEAT = 1 << 15,  /* m and n of {m,n} */
    MR_GRAMMAR_MAX_DEPTH = 2048,      /* nested rules in a text */
    MR_GRAMMAR_MAX_READINGS = 256,    /* ways to read the text so far */
    MR_GRAMMAR_MAX_TOKEN_BYTES = 256, /* longer tokens are never allowed */
};

typedef struct mr_grammar mr_grammar;

/* Compiles GBNF. MR_E_FORMAT: the text is malformed; the error text names the line. MR_E_UNSUPPORTED: left recursion.
 * MR_E_INVALID: no text matches the grammar. MR_E_TOO_LONG: a limit above is exceeded, or compiling takes too much time
 * or memory. */
MR_MUST_USE mr_status mr_grammar_parse(mr_str gbnf, mr_grammar **out, mr_err *err);
void mr_grammar_destroy(mr_grammar *g);

/* Writes the grammar as bytes, for the wire and the journal. The caller frees the bytes with mr_free. */
MR_MUST_USE mr_status mr_grammar_pack(const mr_grammar *g, uint8_t **out_bytes, size_t *out_n, mr_err *err);
/* Reads a packed grammar. The bytes are not trusted: the errors are those of mr_grammar_parse, and MR_E_FORMAT for
 * bytes that are no packed grammar. Takes as long as mr_grammar_parse. */
MR_MUST_USE mr_status mr_grammar_unpack(const uint8_t *bytes, size_t n, mr_grammar **out, mr_err *err);
/* Returns the GBNF text of the grammar, which is valid as long as the grammar. */
mr_str mr_grammar_source(const mr_grammar *g);

typedef struct mr_grammar_vocab mr_grammar_vocab;

/* Builds a tree of the bytes of all tokens. n_vocab: logits of a row. Ids beyond the tokenizer's tokens are never
 * allowed, nor are control and unknown tokens, and tokens without bytes. Borrows tok. */
MR_MUST_USE mr_status mr_grammar_vocab_create(const mr_tokenizer *tok, int32_t n_vocab, mr_grammar_vocab **out,
                                              mr_err *err);
void mr_grammar_vocab_destroy(mr_grammar_vocab *v);
/* The number of 64-bit words in a mask: ceil(n_vocab / 64). */
size_t mr_grammar_vocab_mask_words(const mr_grammar_vocab *v);

typedef struct mr_grammar_state mr_grammar_state;

/* Creates a state at the start of the text. Allocates all memory that the state will need (some 0.8 MiB and 32 masks).
 * Borrows g and v. */
MR_MUST_USE mr_status mr_grammar_state_create(const mr_grammar *g, const mr_grammar_vocab *v, mr_grammar_state **out,
                                              mr_err *err);
void mr_grammar_state_destroy(mr_grammar_state *s);
/* Sets the state back to the start of the text. */
void mr_grammar_state_reset(mr_grammar_state *s);

/* Takes the next token. Allocates nothing. An end token is allowed where the text is complete, and after it only end
 * tokens are. MR_E_INVALID: the grammar does not allow the token here. MR_E_TOO_LONG: the text is nested deeper than
 * MR_GRAMMAR_MAX_DEPTH, or has more readings than MR_GRAMMAR_MAX_READINGS. After an error the state is as it was. */
MR_MUST_USE mr_status mr_grammar_state_accept(mr_grammar_state *s, int32_t id, mr_err *err);
/* The same for bytes, which may be a part of a token or several tokens. */
MR_MUST_USE mr_status mr_grammar_state_accept_bytes(mr_grammar_state *s, mr_str bytes, mr_err *err);
/* Sets the bits of all tokens that may come next (bit id % 64 of word id / 64) and clears the others. Allocates
 * nothing. The bits of end tokens are set where the text is complete; after an end token no other bits are set. No bit
 * is set if the vocabulary lacks the bytes that must follow. MR_E_TOO_LONG: as above, or the grammar is so ambiguous
 * that the mask would take too long; all bits are then clear. Near the limits of depth and readings, accept may still
 * refuse a token whose bit is set, with MR_E_TOO_LONG. */
MR_MUST_USE mr_status mr_grammar_state_mask(mr_grammar_state *s, uint64_t *bits, mr_err *err);
/* Whether the text may end here. */
bool mr_grammar_state_is_complete(const mr_grammar_state *s);
/* Whether nothing but an end token may follow. */
bool mr_grammar_state_is_finished(const mr_grammar_state *s);

#endif
