/* engine/text/end_tokens.h - the tokens at which generation stops.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_END_TOKENS_H
#define MR_ENGINE_TEXT_END_TOKENS_H

#include "engine/text/vocab.h"

enum { END_TOKENS_MAX = 32 };

typedef struct end_tokens {
    int32_t ids[END_TOKENS_MAX]; /* ascending */
    int32_t n;
} end_tokens;

/* Collects the end tokens that desc names, and the well-known ones that v has as control tokens, or as
 * user-defined tokens whose name has a bar. */
void end_tokens_collect(const vocab *v, const mr_vocab_desc *desc, end_tokens *out_ends);
bool end_tokens_contain(const end_tokens *ends, int32_t id);

#endif
