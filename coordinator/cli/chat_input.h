/* coordinator/cli/chat_input.h - reads the texts that a user types into `millrace chat`. At a terminal, lines have
 * editing and a history (libedit); elsewhere they are plain lines. A line that ends with a backslash continues on the
 * next line. Lines between two lines of """ are one text.
 * Owns:    the state of the terminal while it reads, and the history, which is kept in a file of the user.
 * Threads: bound to the main thread.
 * Errors:  MR_E_NO_MEMORY, MR_E_TOO_LONG, MR_E_FORMAT. A history that cannot be read or written is not an error. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_CHAT_INPUT_H
#define MR_COORDINATOR_CLI_CHAT_INPUT_H

#include <stdbool.h>

#include "engine/text/buffers.h"

enum { CHAT_INPUT_MAX_BYTES = 1 << 22 }; /* of one text */

typedef struct chat_input chat_input;

typedef enum chat_typed {
    CHAT_TYPED_TEXT,
    CHAT_TYPED_INTERRUPT, /* Ctrl-C: the typed text is dropped */
    CHAT_TYPED_END,       /* Ctrl-D, or the end of the input */
} chat_typed;

/* history_path: the file of the history; NULL: the history is not kept. */
MR_MUST_USE mr_status chat_input_open(const char *history_path, chat_input **out, mr_err *err);
void chat_input_close(chat_input *in);
/* Waits for a text, which replaces *out_text. Call mr_interrupt_catch() first. MR_E_FORMAT: input that is no terminal
 * is no text (engine/text/text_file.h); a later line may still be no UTF-8. */
MR_MUST_USE mr_status chat_input_read(chat_input *in, chat_typed *out_what, mr_text_buf *out_text, mr_err *err);
/* Whether the lines come from a terminal, and so from a person who sees the output. */
bool chat_input_at_terminal(const chat_input *in);

#endif
