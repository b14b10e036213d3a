/* tests/support/prefix_log.h - the sums of proto/prefix_sums.h for a test that plays the coordinator: fills the field
 * `prefix` of the messages that it sends to one stage.
 * Owns:    nothing. Threads: the caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_PREFIX_LOG_H
#define MR_TESTS_SUPPORT_PREFIX_LOG_H

#include "proto/messages.h"
#include "proto/prefix_sums.h"

enum { PREFIX_LOG_SLOTS = 512, PREFIX_LOG_BLOCKS = 64 };

typedef struct prefix_log {
    struct {
        mr_prefix_sums sums;
        uint32_t n_blocks, blocks[PREFIX_LOG_BLOCKS];
    } slots[PREFIX_LOG_SLOTS];
} prefix_log;

static inline void prefix_log_open(prefix_log *log, Millrace__OpenSequence *open) {
    if (open->slot >= PREFIX_LOG_SLOTS || open->n_blocks > PREFIX_LOG_BLOCKS)
        return;
    log->slots[open->slot].sums = (mr_prefix_sums){0};
    log->slots[open->slot].n_blocks = (uint32_t)open->n_blocks;
    for (uint32_t i = 0; i < open->n_blocks; i++) {
        log->slots[open->slot].blocks[i] = open->blocks[i];
        mr_prefix_add_block(&log->slots[open->slot].sums, i, open->blocks[i]);
    }
    open->prefix = mr_prefix_pack(log->slots[open->slot].sums);
}

/* sampled_id: of a run without ids. */
static inline void prefix_log_run(prefix_log *log, Millrace__Run *run, int32_t sampled_id) {
    if (run->slot >= PREFIX_LOG_SLOTS || (uint64_t)run->first_block_idx + run->n_blocks > PREFIX_LOG_BLOCKS)
        return;
    mr_prefix_sums *sums = &log->slots[run->slot].sums;
    uint32_t *blocks = log->slots[run->slot].blocks, *n_blocks = &log->slots[run->slot].n_blocks;
    run->prefix = mr_prefix_pack(*sums);
    for (uint32_t i = 0; i < run->n_ids; i++)
        mr_prefix_add_id(sums, run->first_position + i, (int32_t)run->ids[i]);
    if (run->n_ids == 0)
        mr_prefix_add_id(sums, run->first_position, sampled_id);
    if (run->n_blocks == 0)
        return;
    while (*n_blocks > run->first_block_idx) {
        --*n_blocks;
        mr_prefix_remove_block(sums, *n_blocks, blocks[*n_blocks]);
    }
    for (uint32_t i = 0; i < run->n_blocks; i++) {
        blocks[run->first_block_idx + i] = run->blocks[i];
        mr_prefix_add_block(sums, run->first_block_idx + i, run->blocks[i]);
    }
    *n_blocks = run->first_block_idx + (uint32_t)run->n_blocks;
}

#endif
