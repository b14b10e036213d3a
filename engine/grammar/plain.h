/* engine/grammar/plain.h - plain characters: those that may stand in nearly every text and string. In a vocabulary
 * most tokens consist of nothing else, and where a grammar takes any text, it takes all of these at once, without a
 * look at each. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_PLAIN_H
#define MR_ENGINE_GRAMMAR_PLAIN_H

#include "engine/base/str.h"
#include "engine/grammar/dfa.h"

enum { PLAIN_MAX_CHARS = 16 }; /* longer tokens are odd ones */

/* Characters of a token that consists of plain ones only: printable ASCII but " and \, and all beyond ASCII. 0:
 * another one. */
size_t plain_chars(mr_str token);

/* How many plain characters of any choice a state takes, one after another, at most PLAIN_MAX_CHARS. *out_none_more:
 * a text with more of them in a row is not taken, neither here nor by another rule that goes on after this one. */
size_t plain_run(const dfa *d, uint32_t state, bool *out_none_more);

#endif
