/* coordinator/console/prompt_file.h - reads a whole input file: a prompt, a text, or a list of token ids.
 * Threads: any; there is no shared state.
 * Errors:  error texts name the file. MR_E_NOT_FOUND, MR_E_IO: the file cannot be read. MR_E_TOO_LONG: the file has
 *          more than max_bytes. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_PROMPT_FILE_H
#define MR_COORDINATOR_CONSOLE_PROMPT_FILE_H

#include "engine/base/str.h"
#include "engine/text/buffers.h"

enum { PROMPT_FILE_MAX_BYTES = 1 << 28 };

/* Appends the bytes of the file to out. path "-" is standard input. */
MR_MUST_USE mr_status mr_prompt_file_read(const char *path, size_t max_bytes, mr_text_buf *out, mr_err *err);

/* Appends the ids of text to out: at least one decimal token id below n_vocab, separated by white space. name: what
 * error texts call the source of the ids.
 * MR_E_FORMAT: the text has no ids, or a word that is no such id; the error text names the line, the word and the
 * range. */
MR_MUST_USE mr_status mr_prompt_ids_parse(mr_str text, const char *name, int32_t n_vocab, mr_token_buf *out,
                                          mr_err *err);

#endif
