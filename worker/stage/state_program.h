/* worker/stage/state_program.h - the block table of one backend, and the program that changes block tables and copies
 * KV blocks on the backend's queue. The changes of a step come as one record: lists of i32, side by side.
 * Life: describe, then place once the KV store has its memory, then run for each step that changes anything.
 * Owns:    one buffer on the backend (block table, record), and the program. Borrows: the backend.
 * Threads: bound to the step thread.
 * Errors:  those of the backend. run allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_STATE_PROGRAM_H
#define MR_WORKER_STAGE_STATE_PROGRAM_H

#include "backends/backend.h"
#include "engine/kv/kv_store.h"

/* The lists of a record: row SLOT[i] of the block table gets BLOCK[i] at INDEX[i], and KV block FROM[i] is copied to
 * block TO[i], in the order of the list. */
typedef enum state_list {
    STATE_SLOT,
    STATE_INDEX,
    STATE_BLOCK,
    STATE_FROM,
    STATE_TO,
    STATE_LISTS,
} state_list;

/* What a record has room for. Its lists stand one behind the other: entries, entries, entries, copies, copies. */
typedef struct state_limits {
    int32_t n_entries, n_copies;
} state_limits;

enum { STATE_TABLE = STATE_LISTS, STATE_STORE, STATE_PARTS, STATE_TENSORS };

typedef struct state_program {
    mr_backend *be; /* NULL: not described */
    mr_tensor tensors[STATE_TENSORS];
    mr_node nodes[2];
    int32_t *parts; /* of the KV store */
    mr_buffer *buffer;
    mr_program *program;
} state_program;

static inline size_t state_record_ints(const state_limits *limits) {
    return 3 * (size_t)limits->n_entries + 2 * (size_t)limits->n_copies;
}

/* table: [max blocks of a sequence, sequence slots]. */
MR_MUST_USE mr_status state_program_describe(state_program *p, mr_backend *be, const mr_tensor *table,
                                             const mr_kv_desc *kv, const state_limits *limits, mr_err *err);
/* {0} is accepted. */
void state_program_deinit(state_program *p);
bool state_program_is_supported(const state_program *p);
/* Of the buffer. */
size_t state_program_bytes(const state_program *p);
/* first_keys: the keys of the store's first layer, placed. */
MR_MUST_USE mr_status state_program_place(state_program *p, const mr_tensor *first_keys, mr_err *err);

/* Writes entries [first, first + n) of a slot's table. blocks must not change until the fence is reached. */
MR_MUST_USE mr_status state_program_set(state_program *p, int32_t slot, int32_t first, const int32_t *blocks, int32_t n,
                                        mr_fence *out, mr_err *err);
/* Carries out the first `counts` entries and copies of a record, which must not change until the fence is reached. */
MR_MUST_USE mr_status state_program_run(state_program *p, const int32_t *record, const state_limits *counts,
                                        mr_fence *out, mr_err *err);

#endif
