/* coordinator/console/prompt_file.h - what the input files of commands hold: a prompt, a text, or a list of token ids.
 * mr_text_file_read (engine/text/text_file.h) reads the file.
 * Threads: any; there is no shared state. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_PROMPT_FILE_H
#define MR_COORDINATOR_CONSOLE_PROMPT_FILE_H

#include "engine/base/str.h"
#include "engine/text/buffers.h"

enum { PROMPT_FILE_MAX_BYTES = 1 << 28 }; /* of a file with a prompt, a text or ids */

/* Appends the ids of text to out: at least one decimal token id below n_vocab, separated by white space. name: what
 * error texts call the source of the ids.
 * MR_E_FORMAT: the text has no ids, or a word that is no such id; the error text names the line, the word and the
 * range. */
MR_MUST_USE mr_status mr_prompt_ids_parse(mr_str text, const char *name, int32_t n_vocab, mr_token_buf *out,
                                          mr_err *err);

#endif
