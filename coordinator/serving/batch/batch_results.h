/* coordinator/serving/batch/batch_results.h - the file of results, which is the state of a batch: a line that has a
 * result here is done. Results are appended whole and synced in groups. A last line without its newline was torn by a
 * stop, and is cut off; so a batch goes on after any stop without a result lost or doubled. Each result names line and
 * hash of its request in its id, so that results of another input are noticed.
 * Owns:    the descriptor, and a lock on the file as long as it is open: two programs cannot work at one batch.
 * Threads: caller serialises.
 * Errors:  MR_E_IO, also where another program works at it; MR_E_FORMAT: it is no file of results of this input. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_BATCH_BATCH_RESULTS_H
#define MR_COORDINATOR_SERVING_BATCH_BATCH_RESULTS_H

#include "coordinator/serving/batch/batch_input.h"

typedef struct mr_batch_results {
    int fd;
    const char *path; /* borrowed */
    mr_text_buf unsaved;
    int32_t n_unsaved;  /* results in it, and written but not synced */
    size_t n_cut_bytes; /* of a torn result */
    uint32_t n_found;   /* results that were there */
    uint32_t n_failed;  /* of these, with an error */
} mr_batch_results;

/* Opens or makes the file, and marks the lines of `in` that are done. */
MR_MUST_USE mr_status mr_batch_results_open(const char *path, mr_batch_input *in, mr_batch_results *out, mr_err *err);
/* Without a sync. {.fd = -1} is accepted. */
void mr_batch_results_close(mr_batch_results *r);
/* A result that succeeded (`response` is an answer's body) or failed in its own way (an HTTP status of 400 or more). */
MR_MUST_USE mr_status batch_results_add(mr_batch_results *r, const mr_batch_input *in, batch_line *l, int http_status,
                                        mr_str body, mr_err *err);
/* A line that never became a request. */
MR_MUST_USE mr_status batch_results_add_error(mr_batch_results *r, const mr_batch_input *in, batch_line *l,
                                              const char *code, const char *message, mr_err *err);
/* All results so far are on the disk. */
MR_MUST_USE mr_status batch_results_sync(mr_batch_results *r, mr_err *err);

#endif
