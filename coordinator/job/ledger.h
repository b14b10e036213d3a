/* coordinator/job/ledger.h - the account of KV blocks: which blocks belong to which sequence, in which order, which
 * blocks are free, and what the blocks hold. Block ids are the same on all stages.
 * Every block is in exactly one state:
 *   held    one or several references: from tables of slots, or from a copy that is due
 *   cached  without references, but its content is known by a key (prefix_cache.h). A cached block counts as free. It
 *           goes to a sequence that begins with the content. If no other block is left, the ledger evicts cached
 *           blocks, the one unused longest first
 *   free
 * A new sequence shares the whole blocks whose keys are those of its ids. It writes only into blocks of its own. Of a
 * block that is filled in part it gets a copy.
 * A free block goes to its next owner at once, even if late rows of the old owner are still under way. Other sequences
 * may read a block as soon as the step that writes it is issued. Both are safe because every stage runs the steps in
 * the same order: late rows of the old owner are written before rows of the new owner, and a step reads only what an
 * earlier step has written. Copies are made before the rows of their step.
 * Owns:    its tables, sized at create. Threads: bound to the coordinator thread. Nothing is allocated after create. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_LEDGER_H
#define MR_COORDINATOR_JOB_LEDGER_H

#include "coordinator/job/prefix_cache.h"

typedef struct mr_ledger mr_ledger;

/* n_slots: sequence slots, each with at most max_blocks of the n_blocks KV blocks. */
MR_MUST_USE mr_status mr_ledger_create(int32_t n_blocks, int32_t n_slots, int32_t max_blocks, mr_ledger **out,
                                       mr_err *err);
void mr_ledger_destroy(mr_ledger *l);

/* Makes the table of slot n blocks long; a table never shrinks. false: too few blocks are free, or n is more than a
 * table holds; nothing is changed. */
MR_MUST_USE bool mr_ledger_grow(mr_ledger *l, int32_t slot, int32_t n);
/* The block ids of slot in position order, and their number. */
const uint32_t *mr_ledger_table(const mr_ledger *l, int32_t slot);
int32_t mr_ledger_n_held(const mr_ledger *l, int32_t slot);
/* Drops all references of slot to its blocks. */
void mr_ledger_release(mr_ledger *l, int32_t slot);

/* Blocks without references, cached ones included. */
int32_t mr_ledger_n_free(const mr_ledger *l);
int32_t mr_ledger_n_cached(const mr_ledger *l);

/* --- Shared beginnings --- */

/* The blocks that a new sequence can share, from a look-up. */
typedef struct mr_ledger_hits {
    int32_t n_whole; /* whole blocks at its beginning */
    int32_t copy_of; /* a block that begins with the rows behind the whole blocks; MR_NO_BLOCK: none */
    /* Key of the last block, or of the last beginning of a block, of this sequence that another sequence is computing
     * now. All blocks before it exist or are being computed. NULL: none. Points into the arguments of the look-up. */
    const mr_prefix_key *promised;
    int32_t n_unshared; /* cached ones among these blocks: they have no references, and count as free */
} mr_ledger_hits;

/* Looks up the first n_keys of keys, and then begin, the key of the beginning of a block. begin may be NULL. */
mr_ledger_hits mr_ledger_look_up(mr_ledger *l, const mr_prefix_keys *keys, int32_t n_keys, const mr_prefix_key *begin);
/* The number of keys looked up since create. */
int64_t mr_ledger_n_looked_up(const mr_ledger *l);
/* Waits for the hits' promised key; see prefix_cache.h. */
void mr_ledger_wait(mr_ledger *l, const mr_ledger_hits *hits, mr_prefix_wait *w);
mr_prefix_wait *mr_ledger_take_woken(mr_ledger *l);
/* Fills the empty table of slot with n blocks, n > hits.n_whole. The first blocks are the hits of the look-up just
 * before, the others are new. If the look-up found the beginning of a block, a copy into the first new block becomes
 * due, and its source is held until the copy is taken. false: fewer than spare blocks would stay free, and nothing is
 * changed. */
MR_MUST_USE bool mr_ledger_begin(mr_ledger *l, int32_t slot, const mr_ledger_hits *hits, int32_t n, int32_t spare);
/* How many blocks mr_ledger_begin needs free, besides spare ones. */
static inline int32_t mr_ledger_n_needed(const mr_ledger_hits *hits, int32_t n) {
    return n - hits->n_whole + hits->n_unshared;
}
/* Takes the copy that is due before the first row of slot; each copy is returned once. false: no copy is due. */
bool mr_ledger_take_copy(mr_ledger *l, int32_t slot, uint32_t *out_from, uint32_t *out_to);

/* Promises the content of block idx of slot. The block belongs to this slot alone. Other sequences may wait for the
 * promised content. If another block has this content already, block idx gets no key. */
void mr_ledger_promise(mr_ledger *l, int32_t slot, int32_t idx, mr_prefix_part part, const mr_prefix_key *key);
/* Makes the promised key ready: the rows of the block have been issued, so later steps may read them. */
void mr_ledger_publish(mr_ledger *l, int32_t slot, int32_t idx, mr_prefix_part part);

/* --- Blocks that outlive an epoch --- */

/* Sets bit i % 8 of bits[i / 8] for each block i that a slot holds and whose content has a ready key. Returns how many
 * there are. bits: zeros, for all blocks. */
int32_t mr_ledger_mark_ready(const mr_ledger *l, uint8_t *bits);
/* The same for blocks that are whole, so that no step writes to them as long as their version stays. */
int32_t mr_ledger_mark_whole(const mr_ledger *l, uint8_t *bits);
/* How often each block has got new content: [n_blocks]. */
const uint32_t *mr_ledger_versions(const mr_ledger *l);
/* Drops all references of all slots. */
void mr_ledger_release_all(mr_ledger *l);
/* Forgets what the cached blocks hold, except those whose bits are set; NULL: all of them. They are free then. */
void mr_ledger_forget(mr_ledger *l, const uint8_t *kept);

/* For tests. MR_E_INTERNAL: references, free and cached blocks do not add up. Allocates. */
MR_MUST_USE mr_status mr_ledger_check(const mr_ledger *l, mr_err *err);

#endif
