/* coordinator/serving/batch/batch_store_internal.h - the inside of mr_batch_store: batch_store.c works,
 * batch_store_answer.c answers. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_BATCH_BATCH_STORE_INTERNAL_H
#define MR_COORDINATOR_SERVING_BATCH_BATCH_STORE_INTERNAL_H

#include <stdatomic.h>

#include "coordinator/serving/batch/batch_files.h"
#include "coordinator/serving/batch/batch_store.h"
#include "engine/base/thread.h"

struct mr_batch_store {
    const char *folder;
    int fd; /* of its file `lock`, which is locked as long as the store is there */
    const mr_api *api;
    int32_t max_live;
    mr_thread *thread;
    mr_mutex lock; /* all below, and the objects of batches on the disk */
    mr_cond changed;
    bool stops;
    char now[BATCH_ID_BYTES]; /* the batch that is worked at; "": none */
    bool cancels;             /* it */
    mr_batch_counts counts;   /* its */
};

/* Under the lock: sets `status` of a batch, and the time of field `at`, and saves it. Takes nothing. */
MR_MUST_USE mr_status batch_store_set_status(mr_batch_store *s, json_t *batch, const char *status, const char *at,
                                             mr_err *err);

#endif
