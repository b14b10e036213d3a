/* engine/text/special_tokens.h - finds the tokens that a text spells out as a whole, before it is cut into words:
 * user-defined ones always, control and unknown ones on request. The leftmost one counts, and of those the longest.
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
    bool is_control;   /* control or unknown: on request only */
    bool strips_right; /* white space after it belongs to it */
} special_entry;

typedef struct special_tokens {
    special_entry *entries; /* sorted by text, then by id */
    int32_t n;
    int32_t first[257]; /* first[b] .. first[b + 1]: those that begin with byte b */
} special_tokens;

typedef struct special_match {
    size_t start, end; /* of the token's text */
    size_t resume;     /* where the text goes on: end, or beyond the white space that the token strips */
    int32_t id;
} special_match;

/* strips_right: as phi-3's tokens do. */
MR_MUST_USE mr_status special_tokens_init(special_tokens *st, const vocab *v, bool strips_right, mr_err *err);
void special_tokens_deinit(special_tokens *st);

/* The first one at or after from. */
bool special_tokens_find(const special_tokens *st, mr_str text, size_t from, bool with_control, special_match *out);

#endif
