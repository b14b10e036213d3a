/* coordinator/serving/text/dry_breakers.h - the tokens that break the sequences of the DRY sampler: every token whose
 * text contains one of the given texts.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_TEXT_DRY_BREAKERS_H
#define MR_COORDINATOR_SERVING_TEXT_DRY_BREAKERS_H

#include "engine/text/tokenizer.h"

/* The defaults of llama.cpp: newline, colon, double quote, asterisk. */
enum { MR_DRY_N_DEFAULT_BREAKERS = 4 };
extern const char *const mr_dry_default_breakers[MR_DRY_N_DEFAULT_BREAKERS];

/* Appends the ids in rising order. Scans the whole vocabulary, which takes some milliseconds. An empty text matches no
 * token. MR_E_TOO_LONG: more tokens match than a sampler takes; MR_E_NO_MEMORY. */
MR_MUST_USE mr_status mr_dry_breakers_find(const mr_tokenizer *tok, const char *const *texts, int32_t n_texts,
                                           mr_token_buf *out, mr_err *err);

#endif
