/* engine/grammar/plain.h - plain characters: the characters that may stand in nearly every text and string. Most tokens
 * of a vocabulary consist of plain characters only. A grammar that takes any text takes all these tokens at once, so
 * they need not be tried one by one.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_PLAIN_H
#define MR_ENGINE_GRAMMAR_PLAIN_H

#include "engine/base/str.h"
#include "engine/grammar/dfa.h"

enum { PLAIN_MAX_CHARS = 16 }; /* a longer token does not count as plain */

/* Returns the number of characters of a plain token. Plain characters are printable ASCII except " and \, and all
 * characters beyond ASCII. Returns 0 for any other token. */
size_t plain_chars(mr_str token);

/* Returns how many arbitrary plain characters a state takes in a row, at most PLAIN_MAX_CHARS. *out_none_more: no text
 * with more plain characters in a row is taken, neither by this rule nor by a rule that continues after it. */
size_t plain_run(const dfa *d, uint32_t state, bool *out_none_more);

#endif
