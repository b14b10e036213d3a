/* coordinator/cli/chat_input.h - what a person types into `millrace chat`: lines with editing and a history (libedit)
 * at a terminal, plain lines otherwise. A line that ends with a backslash goes on in the next one; lines between two
 * lines """ are one text.
 * Owns:    the terminal's state while it reads, and the history, which is kept in a file of this user's.
 * Threads: bound to the main thread.
 * Errors:  MR_E_NO_MEMORY, MR_E_TOO_LONG. A history that cannot be kept is no error. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_CHAT_INPUT_H
#define MR_COORDINATOR_CLI_CHAT_INPUT_H

#include <stdbool.h>

#include "engine/text/buffers.h"

enum { CHAT_INPUT_MAX_BYTES = 1 << 22 }; /* of one text */

typedef struct chat_input chat_input;

typedef enum chat_typed {
    CHAT_TYPED_TEXT,
    CHAT_TYPED_INTERRUPT, /* Ctrl-C: what was typed is forgotten */
    CHAT_TYPED_END,       /* Ctrl-D, or the end of the input */
} chat_typed;

/* history_path may be NULL. */
MR_MUST_USE mr_status chat_input_open(const char *history_path, chat_input **out, mr_err *err);
void chat_input_close(chat_input *in);
/* Waits for a text. SIGINT is to be caught. */
MR_MUST_USE mr_status chat_input_read(chat_input *in, chat_typed *out_what, mr_text_buf *out_text, mr_err *err);
/* Lines come from a person who sees what is printed. */
bool chat_input_at_terminal(const chat_input *in);

#endif
