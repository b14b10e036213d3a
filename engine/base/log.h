/* engine/base/log.h - lines "time level rank component: text" on stderr, or one JSON object a line.
 * Owns:    the one log sink of the process: level, format, rank and the counts of repeats.
 * Threads: thread-safe; a line is one write, also between ranks that share a pipe.
 * Errors:  none; a line that cannot be written is lost.
 * Prompts and outputs are logged at the data level only. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_LOG_H
#define MR_ENGINE_BASE_LOG_H

#include <stdbool.h>

#include "engine/base/status.h"

typedef enum mr_log_level {
    MR_LOG_ERROR = 0, /* something was given up */
    MR_LOG_WARN,      /* somebody should look */
    MR_LOG_INFO,      /* a few lines for each start, plan and failure; the default */
    MR_LOG_DEBUG,     /* lines for each step */
    MR_LOG_DATA,      /* contents of requests, too */
} mr_log_level;

enum {
    MR_LOG_LINE_BYTES = 2048, /* longer lines are cut; below PIPE_BUF, so that lines never mix */
    MR_LOG_REPEATS = 8,       /* lines a second that are alike; the next ones are counted and left out */
};

/* One line. Lines of the levels error to info that differ in digits only are alike; the first one that is let through
 * later says how many were left out. Control characters in the text become spaces. */
void mr_log_write(mr_log_level level, const char *component, const char *fmt, ...) MR_PRINTF(3, 4);
/* A line that was asked for: of the info level, but never left out. */
void mr_log_always(const char *component, const char *text);
/* One line that is never left out. As JSON it has the members of fields, too: "\"status\":200", of 1 KiB at most. */
void mr_log_event(mr_log_level level, const char *component, const char *text, const char *fields);
/* For text that is costly to make. */
bool mr_log_enabled(mr_log_level level);

void mr_log_set_level(mr_log_level level);
/* error, warn, info, debug, data; false and nothing written for another name. */
bool mr_log_level_parse(const char *name, mr_log_level *out_level);
void mr_log_set_json(bool json);
/* The rank of this process, once it is known; "-" (null in JSON) stands for it before. */
void mr_log_set_rank(int rank);
/* Where lines go; 2 (stderr) at first. The descriptor stays the caller's. */
void mr_log_set_fd(int fd);

#endif
