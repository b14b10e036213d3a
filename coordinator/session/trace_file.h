/* coordinator/session/trace_file.h - writes the time spans of a job's stages to a file for ui.perfetto.dev and
 * chrome://tracing, with one track for each stage; and prints as a table how the stages spent their time.
 * Format:  the JSON array of Chrome's trace event format; times in microseconds since the file was opened.
 * Owns:    the file. {0} is closed.
 * Threads: bound to the main thread.
 * Errors:  MR_E_IO with the path. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_TRACE_FILE_H
#define MR_COORDINATOR_SESSION_TRACE_FILE_H

#include <stdio.h>

#include "coordinator/job/job.h"
#include "engine/text/buffers.h"

typedef struct mr_trace_file {
    FILE *file;
    const char *path;         /* borrowed */
    const int64_t *offset_ns; /* [n_stages]: how far a stage's clock is ahead of this one; borrowed */
    int64_t zero_ns;
} mr_trace_file;

/* Creates the file. Borrows path and offset_ns until the trace is closed. */
MR_MUST_USE mr_status trace_file_open(mr_trace_file *t, const char *path, const int64_t *offset_ns, mr_err *err);
/* Starts a trace in an open stream. mr_trace_file_close closes the stream. */
void mr_trace_file_begin(mr_trace_file *t, FILE *file, const int64_t *offset_ns);
/* Names the track of a stage. */
void trace_file_name(mr_trace_file *t, int32_t stage, const char *name);
/* Names the two tracks that a stage has beside its phases: when its CPU and its device compute. */
void trace_file_name_works(mr_trace_file *t, int32_t stage);
/* The on_spans of a job; ctx is the mr_trace_file. */
void mr_trace_file_spans(void *ctx, int32_t stage, const mr_span *spans, int32_t n);
/* Completes and closes the file. MR_E_IO: something could not be written. */
MR_MUST_USE mr_status mr_trace_file_close(mr_trace_file *t, mr_err *err);

/* Prints the phases' shares of each stage's time. Call after mr_job_stop. */
MR_MUST_USE mr_status mr_trace_shares_print(const mr_job *job, int32_t n_stages, mr_text_buf *out, mr_err *err);

#endif
