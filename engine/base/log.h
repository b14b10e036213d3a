/* engine/base/log.h - lines "time level rank component: text" on stderr, or one JSON object per line.
 * Owns:    the one log sink of the process: level, format, rank and the counts of repeated lines.
 * Threads: thread-safe. Each line is one write(), so that lines of ranks that share a pipe do not mix.
 * Errors:  none; a line that cannot be written is lost.
 * Prompts and outputs are logged at the data level only. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_LOG_H
#define MR_ENGINE_BASE_LOG_H

#include <stdbool.h>

#include "engine/base/status.h"

typedef enum mr_log_level {
    MR_LOG_ERROR = 0, /* an operation failed for good */
    MR_LOG_WARN,      /* a person should look at this */
    MR_LOG_INFO,      /* a few lines for each start, plan and failure; the default */
    MR_LOG_DEBUG,     /* lines for each step */
    MR_LOG_DATA,      /* also the contents of requests */
} mr_log_level;

enum {
    MR_LOG_LINE_BYTES = 2048, /* longer lines are cut; less than PIPE_BUF, so that lines never mix */
    MR_LOG_REPEATS = 8,       /* equal lines in a second; further ones are counted and left out */
};

/* Writes one line. Lines of the levels error to info that differ in digits only count as equal. After lines were left
 * out, the next equal line says how many. Control characters in the text become spaces. */
void mr_log_write(mr_log_level level, const char *component, const char *fmt, ...) MR_PRINTF(3, 4);
/* Writes a line that the user asked for: at the info level, but never left out. */
void mr_log_always(const char *component, const char *text);
/* Writes one line that is never left out. In JSON the object also has the members in fields, for example
 * "\"status\":200", of 1 KiB at most. */
void mr_log_event(mr_log_level level, const char *component, const char *text, const char *fields);
/* Lets a caller skip text that is expensive to make. */
bool mr_log_enabled(mr_log_level level);

void mr_log_set_level(mr_log_level level);
/* Parses error, warn, info, debug or data. Returns false for another name and writes nothing. */
bool mr_log_level_parse(const char *name, mr_log_level *out_level);
void mr_log_set_json(bool json);
/* Sets the rank of this process. Until then lines have "-" (null in JSON) as the rank. */
void mr_log_set_rank(int rank);
/* Sets the descriptor that lines are written to; at first 2 (stderr). The caller keeps the descriptor open. */
void mr_log_set_fd(int fd);

#endif
