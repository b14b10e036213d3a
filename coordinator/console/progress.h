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

typedef struct progress {
    bool on_terminal, shown;
    int64_t next_ns; /* not before this */
    char last[PROGRESS_TEXT];
} progress;

void progress_begin(progress *p);
/* ctx is a progress: fits mr_job_config.progress. */
void progress_update(void *ctx, size_t done_bytes, size_t total_bytes);
/* For other work than loading: whether it is time for the next line (which then counts as shown), and the line. */
bool progress_is_due(progress *p);
void progress_show(progress *p, const char *text);
/* Erases the line on a terminal. */
void progress_end(progress *p);

#endif
