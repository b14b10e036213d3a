/* coordinator/console/prompt_file.h - reads a whole input: a prompt, a text, or a list of token ids.
 * Threads: pure functions.
 * Errors:  texts name the file. MR_E_NOT_FOUND, MR_E_IO: it cannot be read. MR_E_TOO_LONG: more than max_bytes. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_PROMPT_FILE_H
#define MR_COORDINATOR_CONSOLE_PROMPT_FILE_H

#include "engine/base/str.h"
#include "engine/text/buffers.h"

enum { PROMPT_FILE_MAX_BYTES = 1 << 28 };

/* path "-" is standard input. Appends to out. */
MR_MUST_USE mr_status mr_prompt_file_read(const char *path, size_t max_bytes, mr_text_buf *out, mr_err *err);

/* Decimal token ids below n_vocab, separated by white space; at least one. name: what errors call the source.
 * MR_E_FORMAT: something else; the text names the line, what stands there and the range. */
MR_MUST_USE mr_status mr_prompt_ids_parse(mr_str text, const char *name, int32_t n_vocab, mr_token_buf *out,
                                          mr_err *err);

#endif
