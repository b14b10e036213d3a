/* worker/stage/stage_state.h - what a stage keeps from step to step: on each backend that has layers, their KV blocks
 * and a block table. Changes for the next step are collected on the host. mr_stage_state_update puts them into the
 * queues of the backends, in front of the step, and waits for nothing but a place to write to.
 *     mr_stage_state_set_blocks(s, slot, first, blocks, n, err);    // any number of times, also while a step runs
 *     mr_stage_state_copy_block(s, from, to, err);
 *     mr_stage_state_update(s, err);                                // then the graph of the step is started
 * Owns:    KV stores, block tables and a copy of the block tables on the host. Borrows: info and backends, which
 *          outlive it.
 * Threads: bound to the step thread.
 * Errors:  those of the backends. Only create and allocate allocate. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_STAGE_STATE_H
#define MR_WORKER_STAGE_STAGE_STATE_H

#include "engine/model/model.h"
#include "worker/stage/stage.h"

typedef struct mr_stage_state mr_stage_state;

/* Chooses the backend that holds the state of each layer, and describes the state without memory behind it. config is
 * read here only. */
MR_MUST_USE mr_status mr_stage_state_create(const mr_stage_config *config, const mr_backends *backends,
                                            mr_stage_state **out, mr_err *err);
/* Waits until no backend reads the state's memory on the host. The KV store goes to config.kept_kv, if there is one for
 * all layers. */
void mr_stage_state_destroy(mr_stage_state *s);
/* Takes the memory on the backends. */
MR_MUST_USE mr_status mr_stage_state_allocate(mr_stage_state *s, mr_err *err);

/* As mr_stage_has_kept_kv and mr_stage_kv_store. */
bool mr_stage_state_has_kept_kv(const mr_stage_state *s);
mr_kv_store *mr_stage_state_kv_store(const mr_stage_state *s);

/* The tensors, for the stage's graphs; they have a place after mr_stage_state_allocate. */
const mr_state_tensors *mr_stage_state_tensors(const mr_stage_state *s);
/* Bytes on backend b of the list. */
size_t mr_stage_state_kv_bytes(const mr_stage_state *s, int32_t b);
size_t mr_stage_state_table_bytes(const mr_stage_state *s, int32_t b);

/* Collect changes, as mr_stage_set_blocks and mr_stage_copy_block say. */
MR_MUST_USE mr_status mr_stage_state_set_blocks(mr_stage_state *s, int32_t slot, int32_t first, const int32_t *blocks,
                                                int32_t n, mr_err *err);
void mr_stage_state_copy_block(mr_stage_state *s, int32_t from, int32_t to);
/* Queues the collected changes: block tables first, then copies in their order. Does nothing if there are none. On the
 * host's memory the changes happen at once, so no step may be under way there. */
MR_MUST_USE mr_status mr_stage_state_update(mr_stage_state *s, mr_err *err);

#endif
