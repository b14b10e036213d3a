/* worker/stage/kept_kv.h - the keys and values of a stage that has ended. A stage of a later epoch with the same layers
 * goes on with them, or another rank gets them (worker/kv_transfer.h).
 * Owns:    the store. Borrows: the store's backend, which outlives it.
 * Threads: bound to the step thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_KEPT_KV_H
#define MR_WORKER_STAGE_KEPT_KV_H

#include "engine/kv/kv_store.h"
#include "engine/model/model.h"

typedef struct mr_kept_kv {
    mr_kv_store *store; /* NULL: nothing is kept */
    mr_kv_store *used;  /* by the stage that runs, and owned by it; NULL: there is none, or there are several */
    mr_layer_range range;
    uint32_t epoch; /* set by the owner: of the last stage that had the store */
} mr_kept_kv;

/* Frees the store that is kept, if there is one. */
static inline void mr_kept_kv_drop(mr_kept_kv *kept) {
    mr_kv_store_destroy(kept->store);
    kept->store = NULL;
}

#endif
