/* coordinator/serving/chat/chat_grammar.h - writes GBNF for the grammars of forced tool calls. Internal to this folder.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_GRAMMAR_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_GRAMMAR_H

#include <stdbool.h>

#include "engine/base/str.h"
#include "engine/text/buffers.h"

/* A text to append to. After a failure, further text is left out, so that a caller checks `failed` once at the end. */
typedef struct gbnf_text {
    mr_text_buf *buf;
    bool failed; /* no memory */
} gbnf_text;

void gbnf_put(gbnf_text *g, const char *gbnf);
/* Appends formatted text, which must be short. */
void gbnf_putf(gbnf_text *g, const char *format, ...) MR_PRINTF(2, 3);
/* Appends a literal and a space; nothing for an empty literal. */
void gbnf_literal(gbnf_text *g, mr_str text);
/* Appends the rules NAME-0, NAME-1 ...: any text up to and with the first `mark`, which has at most 64 characters. */
void gbnf_text_until(gbnf_text *g, const char *name, const char *mark);

#endif
