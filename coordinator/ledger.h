/* coordinator/ledger.h - the account of KV blocks: which are free, and which belong to which sequence in which order.
 * Block ids are the same on all stages. A block may be given to another sequence as soon as nobody refers to it: steps run
 * in one order on every stage, so a late row of the old owner is written before the new owner's first.
 * Owns:    its tables, sized at create. Threads: bound to the coordinator thread. Nothing is allocated after create. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_LEDGER_H
#define MR_COORDINATOR_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct mr_ledger mr_ledger;

/* n_slots sequence slots of at most max_blocks blocks each, out of n_blocks. */
MR_MUST_USE mr_status mr_ledger_create(int32_t n_blocks, int32_t n_slots, int32_t max_blocks, mr_ledger **out,
                                       mr_err *err);
void mr_ledger_destroy(mr_ledger *l);

/* Makes slot's table n blocks long; it never shrinks. false, and nothing is changed: too few blocks are free, or n is more
 * than a table holds. */
MR_MUST_USE bool mr_ledger_grow(mr_ledger *l, int32_t slot, int32_t n);
/* The block ids of slot in position order, and how many there are. */
const uint32_t *mr_ledger_table(const mr_ledger *l, int32_t slot);
int32_t mr_ledger_n_held(const mr_ledger *l, int32_t slot);
/* Gives all blocks of slot back. */
void mr_ledger_release(mr_ledger *l, int32_t slot);

/* Blocks that nobody refers to. */
int32_t mr_ledger_n_free(const mr_ledger *l);

#endif
