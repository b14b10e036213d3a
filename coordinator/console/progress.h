/* coordinator/console/progress.h - shows the progress of a start, a measurement or a batch on standard error. On a
 * terminal it is one line that is overwritten. Elsewhere it is a new line every 5 seconds, if the text has changed.
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
    int64_t next_ns; /* the earliest time of the next update */
    char last[PROGRESS_TEXT];
} mr_progress;

void mr_progress_begin(mr_progress *p);
/* Shows "loading 12 % of 4.0 GiB" when an update is due. ctx: an mr_progress. Fits mr_job_config.progress. */
void mr_progress_update(void *ctx, size_t done_bytes, size_t total_bytes);
/* For work other than loading: if mr_progress_is_due() returns true, call mr_progress_show() with the new text. */
bool mr_progress_is_due(mr_progress *p);
void mr_progress_show(mr_progress *p, const char *text);
/* Erases the line on a terminal. */
void mr_progress_end(mr_progress *p);

#endif
