/* coordinator/serving/batch/batch_store.h - OpenAI's Files and Batches API over a folder on the disk. A thread runs the
 * batches one after another. A batch that was running when the server ended is resumed at the next start. When a batch
 * has ended, answers with status 200 stand in its output file, and all other lines in its error file, those that a
 * cancelled batch has not answered, too. A file that would be empty is not there, and its id is null.
 * Owns:    the thread, and a lock on the folder. Borrows: the path of the folder, the api.
 * Threads: create, start, stop and destroy are for one thread; any threads may call answer at the same time, which
 *          reads and writes files and so may block.
 * Source:  OpenAI's API reference (files, batches). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_BATCH_BATCH_STORE_H
#define MR_COORDINATOR_SERVING_BATCH_BATCH_STORE_H

#include "coordinator/serving/batch/batch_run.h"

typedef struct mr_batch_store mr_batch_store;

/* Creates the folder where it is missing. MR_E_IO, also where another server uses the folder. */
MR_MUST_USE mr_status mr_batch_store_create(const char *folder, mr_batch_store **out, mr_err *err);
/* After stop. NULL is accepted. */
void mr_batch_store_destroy(mr_batch_store *s);
/* Starts the thread, which keeps at most max_live calls open. To be called once the service is ready. */
MR_MUST_USE mr_status mr_batch_store_start(mr_batch_store *s, const mr_api *a, int32_t max_live, mr_err *err);
/* Tells the thread to end, and does not wait for the end. */
void mr_batch_store_ask_to_stop(mr_batch_store *s);
/* Ends the thread: no call is open when this returns. A running batch is resumed at the next start. May be called
 * without start. */
void mr_batch_store_stop(mr_batch_store *s);

typedef struct mr_batch_answer {
    int status;               /* of HTTP */
    const char *content_type; /* constant */
    mr_text_buf body;         /* owned by the caller */
} mr_batch_answer;

/* Answers a request to /v1/files, /v1/batches or a path below them: POST, GET and DELETE of files, GET of /content;
 * POST and GET of batches, POST of /cancel. A file is uploaded as multipart/form-data with `file` and `purpose`. Lists
 * are not divided into pages. */
void mr_batch_store_answer(mr_batch_store *s, const char *method, const char *path, mr_str body, mr_batch_answer *out);

#endif
