/* coordinator/serving/chat/chat_grammar.h - pieces of GBNF for the grammars of forced calls. Internal to this folder.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_GRAMMAR_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_GRAMMAR_H

#include <stdbool.h>

#include "engine/base/str.h"
#include "engine/text/buffers.h"

/* A text to which everything is appended until something fails: then all that follows is left out. */
typedef struct gbnf_text {
    mr_text_buf *buf;
    bool failed; /* no memory */
} gbnf_text;

void gbnf_put(gbnf_text *g, const char *gbnf);
/* With a number in it; the format is short. */
void gbnf_putf(gbnf_text *g, const char *format, ...) MR_PRINTF(2, 3);
/* A literal with a space behind it; nothing for an empty one. */
void gbnf_literal(gbnf_text *g, mr_str text);
/* Rules NAME-0, NAME-1 ...: any text that ends with the first `mark`, which has at most 64 characters. */
void gbnf_text_until(gbnf_text *g, const char *name, const char *mark);

#endif
