/* coordinator/console/progress.h - how far a start, a measurement or a batch has come: on a terminal one line, which
 * updates itself; otherwise plain lines, some seconds apart, and none that says what the last one said.
 * Owns:    nothing. Threads: bound to the main thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_PROGRESS_H
#define MR_COORDINATOR_CONSOLE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROGRESS_TEXT = 200 };

typedef struct mr_progress {
    bool on_terminal, shown;
    int64_t next_ns; /* not before this */
    char last[PROGRESS_TEXT];
} mr_progress;

void mr_progress_begin(mr_progress *p);
/* ctx is a progress: fits mr_job_config.progress. */
void mr_progress_update(void *ctx, size_t done_bytes, size_t total_bytes);
/* For other work than loading: whether it is time for the next line (which then counts as shown), and the line. */
bool mr_progress_is_due(mr_progress *p);
void mr_progress_show(mr_progress *p, const char *text);
/* Erases the line on a terminal. */
void mr_progress_end(mr_progress *p);

#endif
