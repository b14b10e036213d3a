/* coordinator/serving/batch/batch_store_internal.h - the inside of mr_batch_store: batch_store.c runs batches,
 * batch_store_answer.c answers HTTP requests.
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
    char now[BATCH_ID_BYTES]; /* the running batch; "": none */
    bool cancels;             /* the running batch is to be cancelled */
    mr_batch_counts counts;   /* of the running batch */
};

/* Under the lock: sets the status of a batch and the time in field `at`, and saves the batch. */
MR_MUST_USE mr_status batch_store_set_status(mr_batch_store *s, json_t *batch, const char *status, const char *at,
                                             mr_err *err);

#endif
