/* engine/base/log_line.h - internal to log.c and its tests: the format of a log line.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_LOG_LINE_H
#define MR_ENGINE_BASE_LOG_LINE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/log.h"

typedef struct log_line {
    int64_t unix_ms; /* time of day */
    mr_log_level level;
    int rank; /* < 0: not known */
    const char *component, *text;
    const char *fields; /* more members of the JSON object, as JSON; NULL for none */
    uint32_t n_left_out;
} log_line;

const char *log_level_name(mr_log_level level);
/* Write a line with its newline to out, which has at least 256 bytes. The text is cut to fit. Return the length; no
 * zero is added. */
size_t log_line_plain(const log_line *line, char *out, size_t bytes);
size_t log_line_json(const log_line *line, char *out, size_t bytes);

#endif
