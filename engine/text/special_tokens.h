/* engine/text/special_tokens.h - finds tokens that stand in a text as a whole, before the text is cut into words.
 * User-defined tokens are always found, control and unknown tokens on request. The leftmost token is taken, and the
 * longest of several at that place.
 * Owns:    a sorted table. Borrows: the vocabulary, which outlives it.
 * Threads: does not change once filled. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_SPECIAL_TOKENS_H
#define MR_ENGINE_TEXT_SPECIAL_TOKENS_H

#include "engine/text/vocab.h"

typedef struct special_entry {
    const char *text;
    uint32_t len;
    int32_t id;
    bool is_control;   /* a control or unknown token, found on request only */
    bool strips_right; /* white space after the token is dropped */
} special_entry;

typedef struct special_tokens {
    special_entry *entries; /* sorted by text, then by id */
    int32_t n;
    int32_t first[257]; /* first[b] .. first[b + 1]: the entries that begin with byte b */
} special_tokens;

typedef struct special_match {
    size_t start, end; /* of the token's text */
    size_t resume;     /* where the text continues: end, or after the white space that the token drops */
    int32_t id;
} special_match;

/* strips_right: white space after special tokens is dropped, as in phi-3. */
MR_MUST_USE mr_status special_tokens_init(special_tokens *st, const vocab *v, bool strips_right, mr_err *err);
void special_tokens_deinit(special_tokens *st);

/* Finds the first token at or after from. Returns false when there is none. */
bool special_tokens_find(const special_tokens *st, mr_str text, size_t from, bool with_control, special_match *out);

#endif
