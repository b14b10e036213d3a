/* coordinator/serving/batch/batch_results.h - the file of results, which is the state of a batch: a line that has a
 * result in the file is done. Results are appended whole and synced in groups. A crash may leave a last line without
 * its newline, which is cut off when the file is opened. So a batch resumes after any crash without a lost or a double
 * result. The id of each result holds number and hash of the input line, so that results of another input are refused,
 * and a checksum of the result, so that a damaged one is.
 * Owns:    the descriptor, and a lock on the file while it is open, so that two programs cannot run the same batch.
 * Threads: caller serialises.
 * Errors:  MR_E_IO, also where another program has the file open; MR_E_FORMAT: the file does not hold results of this
 *          input, or another program has cut or extended it since it was opened; MR_E_NOT_FOUND: it was removed or
 *          replaced since then. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_BATCH_BATCH_RESULTS_H
#define MR_COORDINATOR_SERVING_BATCH_BATCH_RESULTS_H

#include "coordinator/serving/batch/batch_input.h"

typedef struct mr_batch_results {
    int fd;
    const char *path; /* borrowed */
    mr_text_buf unsaved;
    int32_t n_unsaved;  /* results that are not synced: in `unsaved`, or written */
    size_t n_bytes;     /* of the file, as far as this program has written it */
    size_t n_cut_bytes; /* of a torn result, cut off by open */
    uint32_t n_found;   /* results in the file when it was opened */
    uint32_t n_failed;  /* of these: with an error */
} mr_batch_results;

/* Opens or creates the file, and marks the lines of `in` that have a result. path outlives out. */
MR_MUST_USE mr_status mr_batch_results_open(const char *path, mr_batch_input *in, mr_batch_results *out, mr_err *err);
/* Closes the file without a sync. {.fd = -1} is accepted. */
void mr_batch_results_close(mr_batch_results *r);
/* Adds the answer to a line: HTTP status and body. A status other than 200 counts as failed. */
MR_MUST_USE mr_status batch_results_add(mr_batch_results *r, const mr_batch_input *in, batch_line *l, int http_status,
                                        mr_str body, mr_err *err);
/* Adds the error of a line that is no valid request. */
MR_MUST_USE mr_status batch_results_add_error(mr_batch_results *r, const mr_batch_input *in, batch_line *l,
                                              const char *code, const char *message, mr_err *err);
/* Writes and syncs: on MR_OK all results so far are on the disk, in the file that has the path. After MR_E_NOT_FOUND
 * and MR_E_FORMAT nothing is written any more. */
MR_MUST_USE mr_status batch_results_sync(mr_batch_results *r, mr_err *err);

/* batch_results_read.c: what stands in a file of results. */

#define BATCH_RESULT_HEAD "{\"id\": \"batch_req_" /* the beginning of each result */
enum { BATCH_HASH_DIGITS = 16 };

typedef struct batch_result {
    uint32_t number; /* of the line of the input */
    uint64_t hash;   /* of this line */
    bool is_whole;   /* false: the checksum does not fit, so the result was damaged or edited */
    bool has_failed; /* has no answer with status 200 */
} batch_result;
/* Reads a line of a file of results, without its newline. false: the line is no result. */
bool batch_result_parse(mr_str text, batch_result *out);

/* Reads the lines of a file one after the other: {.fd = ...}, and mr_text_buf_deinit(&r.read) at the end. */
typedef struct batch_results_reader {
    int fd;              /* borrowed; its position is not used */
    size_t n_good_bytes; /* of the lines so far, which begin the file */
    mr_text_buf read;    /* what is read; from byte `at` on it is not yet returned */
    size_t at;
} batch_results_reader;
/* *out_line is valid until the next call. Its data is NULL at the end, and where the rest of the file has no newline or
 * begins with a line with zero bytes, as after a crash. MR_E_IO, MR_E_NO_MEMORY; MR_E_TOO_LONG: a line of 1 GiB. */
MR_MUST_USE mr_status batch_results_read(batch_results_reader *r, mr_str *out_line, mr_err *err);

#endif
