/* engine/text/text_file.h - the one reader of text that users write: prompts, grammars, chat templates, plans, lists of
 * hosts, keys. Editors and shells of other systems write such files in ways of their own. All readers agree on these:
 * - UTF-8 is taken. A byte order mark of UTF-8 at the start is skipped.
 * - UTF-16 and UTF-32, with or without a byte order mark, are refused by their name.
 * - A NUL byte, or a byte that is not UTF-8, is refused with its line.
 * - Line ends stay as they are. Readers of lines take CRLF as they take LF.
 * Text that does not come from a file (a request body, the lines of a batch) is checked by the same functions.
 * Threads: any; there is no shared state.
 * Errors:  error texts name the source and say what to do. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_TEXT_FILE_H
#define MR_ENGINE_TEXT_TEXT_FILE_H

#include "engine/base/str.h"
#include "engine/text/buffers.h"

/* "UTF-16" or "UTF-32", if the bytes are text of this encoding. NULL: they may be UTF-8. Without a byte order mark,
 * text is recognised if most of its first characters are ASCII. */
const char *mr_text_other_encoding(mr_str bytes);
/* The text behind the byte order mark of UTF-8; all of it, if there is no mark. */
mr_str mr_text_skip_mark(mr_str bytes);

/* Checks that the bytes are text. *out is the part of the bytes behind the byte order mark. name: what the error calls
 * the source. MR_E_FORMAT: the bytes are no text, for one of the reasons above. */
MR_MUST_USE mr_status mr_text_check(mr_str bytes, const char *name, mr_str *out, mr_err *err);

/* Appends the text of a file, or of a pipe, to out. path "-" is standard input. On an error out is as it was.
 * MR_E_NOT_FOUND, MR_E_IO: the file cannot be read. MR_E_TOO_LONG: it has more than max_bytes. MR_E_FORMAT: as for
 * mr_text_check. MR_E_NO_MEMORY. */
MR_MUST_USE mr_status mr_text_file_read(const char *path, size_t max_bytes, mr_text_buf *out, mr_err *err);

#endif
