/* coordinator/serving/batch/batch_store_internal.h - the inside of mr_batch_store: batch_store.c has the thread,
 * batch_store_run.c runs one batch, batch_split.c writes its files, batch_store_answer.c answers HTTP requests.
 * Threads: as the fields say. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_BATCH_BATCH_STORE_INTERNAL_H
#define MR_COORDINATOR_SERVING_BATCH_BATCH_STORE_INTERNAL_H

#include <stdatomic.h>

#include "coordinator/serving/batch/batch_files.h"
#include "coordinator/serving/batch/batch_store.h"
#include "engine/base/thread.h"

struct mr_batch_store {
    const char *folder;
    int fd; /* of the file `lock` in the folder, which is locked until destroy */
    const mr_api *api;
    int32_t max_live;
    mr_thread *thread;
    mr_mutex lock; /* guards all fields below, and the objects of batches on the disk */
    mr_cond changed;
    bool stops;
    char now[BATCH_ID_BYTES];   /* the running batch; "": none */
    bool cancels;               /* the running batch is to be cancelled */
    mr_batch_counts counts;     /* of the running batch */
    char later[BATCH_ID_BYTES]; /* a batch that met an error of the disk: others come first; "": none */
};

/* How a run of a batch has ended. */
typedef enum batch_end {
    BATCH_LEFT, /* it goes on later: the server stops, or something failed that may pass */
    BATCH_COMPLETED,
    BATCH_CANCELLED,
    BATCH_FAILED,
} batch_end;

typedef struct batch_outcome {
    batch_end end;
    uint32_t n_lines, n_answers, n_failures; /* n_lines is 0 where the input was not read */
    /* BATCH_FAILED, for the field `errors`. code and param are constants; param may be NULL; line: 0 for none. */
    const char *code, *param;
    uint32_t line;
    char message[MR_ERR_TEXT_BYTES];
} batch_outcome;

/* Not under the lock. Runs a batch until it ends or is stopped. At the end its files are on the disk. MR_E_IO,
 * MR_E_NO_MEMORY, MR_E_UNAVAILABLE: the end is BATCH_LEFT, and a later call goes on. */
MR_MUST_USE mr_status batch_store_run(mr_batch_store *s, const json_t *batch, batch_outcome *out, mr_err *err);
/* Under the lock: saves the object of a batch whose run has ended. */
MR_MUST_USE mr_status batch_store_end(mr_batch_store *s, json_t *batch, const batch_outcome *o, mr_err *err);

/* batch_split.c: writes the files of a batch from its journal, and their objects. A file without lines is not written.
 * MR_E_IO, MR_E_NO_MEMORY: a later call writes both anew. */
MR_MUST_USE mr_status batch_split(const char *folder, const json_t *batch, uint32_t *out_n_answers,
                                  uint32_t *out_n_failures, mr_err *err);

/* Under the lock: sets the status of a batch and the time in field `at`, and saves the batch. */
MR_MUST_USE mr_status batch_store_set_status(mr_batch_store *s, json_t *batch, const char *status, const char *at,
                                             mr_err *err);
/* Sets request_counts. false: no memory. */
MR_MUST_USE bool batch_store_put_counts(json_t *batch, uint32_t n_lines, uint32_t n_answers, uint32_t n_failures);

#endif
