/* coordinator/serving/batch/batch_store.h - OpenAI's Files and Batches: uploads, and batches that a thread works
 * through one after another, in a folder that survives the server. A batch that was under way when the server ended
 * goes on at the next start. Errors of single requests stand among the results of the output file.
 * Owns:    what it knows of batches, and the thread. Borrows: the path of the folder, the api.
 * Threads: create, start, stop and destroy are for one thread; answer is for any, several at once, and writes to the
 *          disk.
 * Source:  OpenAI's API reference (files, batches). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_BATCH_BATCH_STORE_H
#define MR_COORDINATOR_SERVING_BATCH_BATCH_STORE_H

#include "coordinator/serving/batch/batch_run.h"

typedef struct mr_batch_store mr_batch_store;

/* Makes the folder where it is missing. MR_E_IO, also where another server has it. */
MR_MUST_USE mr_status mr_batch_store_create(const char *folder, mr_batch_store **out, mr_err *err);
/* After stop. NULL is accepted. */
void mr_batch_store_destroy(mr_batch_store *s);
/* From now on batches are worked at, with so many calls at a time; the service is ready. */
MR_MUST_USE mr_status mr_batch_store_start(mr_batch_store *s, const mr_api *a, int32_t max_live, mr_err *err);
/* Soon there are no more calls; does not wait. */
void mr_batch_store_ask_to_stop(mr_batch_store *s);
/* No more calls when it returns: what is under way is given up, and goes on at the next start. May be called without
 * start. */
void mr_batch_store_stop(mr_batch_store *s);

typedef struct mr_batch_answer {
    int status;               /* of HTTP */
    const char *content_type; /* constant */
    mr_text_buf body;         /* the caller's */
} mr_batch_answer;

/* The answer to a request for /v1/files or /v1/batches, or what is below them: POST, GET, DELETE of files, their
 * /content; POST and GET of batches, their /cancel. A file is uploaded as multipart/form-data with `file` and
 * `purpose`. Lists come whole. */
void mr_batch_store_answer(mr_batch_store *s, const char *method, const char *path, mr_str body, mr_batch_answer *out);

#endif
