/* coordinator/console/output.h - what the program says: results on standard output; notes, warnings and errors on
 * standard error.
 * Threads: bound to the main thread.
 * Errors:  writing results can fail, and says so; what cannot be written to standard error is lost. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_OUTPUT_H
#define MR_COORDINATOR_CONSOLE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"
#include "engine/text/buffers.h"

/* With json, the lines below become log lines. */
void mr_output_set_log_json(bool json);

/* "millrace: error: text" in one line; an empty text says nothing. */
void mr_output_error(const mr_err *err);
void mr_output_warning(const char *fmt, ...) MR_PRINTF(1, 2);
/* Plan, progress, statistics: a line on standard error at the log level info. */
void mr_output_note(const char *fmt, ...) MR_PRINTF(1, 2);
/* Several lines, each ended by a newline. */
void mr_output_note_lines(const char *lines);
/* Whether notes are log lines in JSON. */
bool mr_output_notes_are_json(void);
/* Whether notes go to a terminal that can erase a line. */
bool output_notes_on_terminal(void);

/* Writes all bytes to standard output. MR_E_IO: with an empty text when nobody reads any more. */
MR_MUST_USE mr_status mr_output_write(const char *bytes, size_t n, mr_err *err);

/* Appends formatted text; false: no memory. */
MR_MUST_USE bool mr_output_printf(mr_text_buf *b, const char *fmt, ...) MR_PRINTF(2, 3);

enum { OUTPUT_BYTES_TEXT = 16, OUTPUT_ROUNDED_TEXT = 32 };
/* "1.5 GiB", "600 B" */
void mr_output_bytes_text(size_t bytes, char out[OUTPUT_BYTES_TEXT]);
/* A number that is not negative in three significant digits, without an exponent: what a measured time or a forecast
 * deserves. Returns out. */
const char *mr_output_rounded(double v, char out[OUTPUT_ROUNDED_TEXT]);

#endif
