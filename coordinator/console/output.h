/* coordinator/console/output.h - what the program prints: results on standard output; notes, warnings and errors on
 * standard error.
 * Threads: bound to the main thread.
 * Errors:  writing results may fail with MR_E_IO. Errors of writing to standard error are ignored. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_OUTPUT_H
#define MR_COORDINATOR_CONSOLE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/bytes_text.h"
#include "engine/base/status.h"
#include "engine/text/buffers.h"

/* With json, notes, warnings and errors are written as log lines in JSON. */
void mr_output_set_log_json(bool json);

/* Prints the line "millrace: error: TEXT", or nothing where the text is empty. */
void mr_output_error(const mr_err *err);
void mr_output_warning(const char *fmt, ...) MR_PRINTF(1, 2);
/* Prints a line on standard error at log level info: for the plan, progress and statistics. */
void mr_output_note(const char *fmt, ...) MR_PRINTF(1, 2);
/* Prints several lines, each ended by a newline, as notes. In JSON they are one log line. */
void mr_output_note_lines(const char *lines);
/* Whether notes are written as log lines in JSON. */
bool mr_output_notes_are_json(void);
/* Whether notes go to a terminal that can erase a line. Internal to coordinator/console. */
bool output_notes_on_terminal(void);

/* Writes all bytes to standard output. MR_E_IO: cannot be written; the text is empty if the reader closed its pipe. */
MR_MUST_USE mr_status mr_output_write(const char *bytes, size_t n, mr_err *err);

/* Appends formatted text; false: no memory. */
MR_MUST_USE bool mr_output_printf(mr_text_buf *b, const char *fmt, ...) MR_PRINTF(2, 3);

enum { OUTPUT_BYTES_TEXT = MR_BYTES_TEXT, OUTPUT_ROUNDED_TEXT = 32 };
/* Writes a number of bytes such as "1.5 GiB" or "600 B". */
void mr_output_bytes_text(size_t bytes, char out[OUTPUT_BYTES_TEXT]);
/* Writes a number v >= 0 with three significant digits and without an exponent. For measured and predicted values,
 * which are no more exact than that. Returns out. */
const char *mr_output_rounded(double v, char out[OUTPUT_ROUNDED_TEXT]);

#endif
