/* coordinator/job/ledger.h - the account of KV blocks: which belong to which sequences in which order, which are free,
 * and what is in them. Block ids are the same on all stages.
 * Every block is exactly one of
 *   held    a slot's table, or a copy that is due, refers to it; several may
 *   cached  nobody refers to it, but its content is known by a key (prefix_cache.h): it counts as free, and goes to a
 *           sequence that begins with that content, or else is evicted when no other block is left, the one unused
 *           longest first
 *   free
 * A sequence begins with the whole blocks whose keys are those of its ids, and writes only into blocks of its own. Of a
 * block that is filled in part it gets a copy.
 * A block goes to its next owner as soon as it is free, and is read by others as soon as the step that writes it is
 * issued: steps run in one order on every stage, so late rows of the old owner are written before those of the new one,
 * and what a step reads was written by an earlier one. Copies are made before their step's rows.
 * Owns:    its tables, sized at create. Threads: bound to the coordinator thread. Nothing is allocated after create. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_LEDGER_H
#define MR_COORDINATOR_JOB_LEDGER_H

#include "coordinator/job/prefix_cache.h"

typedef struct mr_ledger mr_ledger;

/* n_slots sequence slots of at most max_blocks blocks each, out of n_blocks. */
MR_MUST_USE mr_status mr_ledger_create(int32_t n_blocks, int32_t n_slots, int32_t max_blocks, mr_ledger **out,
                                       mr_err *err);
void mr_ledger_destroy(mr_ledger *l);

/* Makes slot's table n blocks long; it never shrinks. false, and nothing is changed: too few blocks are free, or n is
 * more than a table holds. */
MR_MUST_USE bool mr_ledger_grow(mr_ledger *l, int32_t slot, int32_t n);
/* The block ids of slot in position order, and how many there are. */
const uint32_t *mr_ledger_table(const mr_ledger *l, int32_t slot);
int32_t mr_ledger_n_held(const mr_ledger *l, int32_t slot);
/* Gives all blocks of slot back. */
void mr_ledger_release(mr_ledger *l, int32_t slot);

/* Blocks that nobody refers to, cached ones included. */
int32_t mr_ledger_n_free(const mr_ledger *l);
int32_t mr_ledger_n_cached(const mr_ledger *l);

/* --- Shared beginnings --- */

/* What is there of a sequence. */
typedef struct mr_ledger_hits {
    int32_t n_whole; /* of its first blocks */
    int32_t copy_of; /* the block that begins with the rows behind them; MR_NO_BLOCK: none */
    /* Key of the last block, or of the last beginning of a block, of this sequence that another sequence is computing
     * now. All blocks before it exist or are being computed. NULL: none. Points into the arguments of the look-up. */
    const mr_prefix_key *promised;
    int32_t n_unshared; /* those among all these that nobody refers to: they count as free */
} mr_ledger_hits;

/* Looks for the blocks with the first n_keys of keys, and behind them for the beginning of one; begin may be NULL. */
mr_ledger_hits mr_ledger_look_up(mr_ledger *l, const mr_prefix_keys *keys, int32_t n_keys, const mr_prefix_key *begin);
/* Keys that were looked for since the start. */
int64_t mr_ledger_n_looked_up(const mr_ledger *l);
/* Waits for the hits' promised key; see prefix_cache.h. */
void mr_ledger_wait(mr_ledger *l, const mr_ledger_hits *hits, mr_prefix_wait *w);
mr_prefix_wait *mr_ledger_take_woken(mr_ledger *l);
/* Fills the empty table of slot with n blocks, n > hits.n_whole. The first blocks are the hits of the look-up just
 * before, the others are new. If the look-up found the beginning of a block, a copy into the first new block becomes
 * due, and its source is held until the copy is taken. false: fewer than spare blocks would stay free, and nothing is
 * changed. */
MR_MUST_USE bool mr_ledger_begin(mr_ledger *l, int32_t slot, const mr_ledger_hits *hits, int32_t n, int32_t spare);
/* Blocks that have to be free for that, besides spare ones. */
static inline int32_t mr_ledger_n_needed(const mr_ledger_hits *hits, int32_t n) {
    return n - hits->n_whole + hits->n_unshared;
}
/* The copy that is due before slot's first row, once; false: none. */
bool mr_ledger_take_copy(mr_ledger *l, int32_t slot, uint32_t *out_from, uint32_t *out_to);

/* Promises the content of block idx of slot. The block belongs to this slot alone. Other sequences may wait for the
 * promised content. If another block has this content already, block idx gets no key. */
void mr_ledger_promise(mr_ledger *l, int32_t slot, int32_t idx, mr_prefix_part part, const mr_prefix_key *key);
/* The rows of it have been issued: later steps may read it. */
void mr_ledger_publish(mr_ledger *l, int32_t slot, int32_t idx, mr_prefix_part part);

/* For tests: MR_E_INTERNAL if references, free and cached blocks do not add up. Allocates. */
MR_MUST_USE mr_status mr_ledger_check(const mr_ledger *l, mr_err *err);

#endif
