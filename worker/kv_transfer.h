/* worker/kv_transfer.h - KV blocks go from the rank that had a stage to the rank that has its layers in the next epoch.
 * A message is one block of all layers; its number is the step of its frame.
 * Owns:    its link. Borrows: everything in the config, which outlives the call or the giver.
 * Threads: bound to the step thread.
 * Errors:  those of the store's backend. MR_E_PEER_LOST. MR_E_TIMEOUT: the peer has sent or taken nothing for seconds.
 *          MR_E_PROTOCOL: a block that is not of this store. MR_E_CANCELLED: told_to_end has returned true. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_KV_TRANSFER_H
#define MR_WORKER_KV_TRANSFER_H

#include "engine/kv/kv_store.h"
#include "engine/model/model.h"
#include "proto/channel.h"

#define MR_KV_PATIENCE_NS INT64_C(5000000000) /* where nothing else is to be done */

typedef struct mr_kv_transfer {
    mr_channel *channel;
    int32_t peer;
    uint32_t epoch; /* of the link: the next one, in which the sender has no stage; ahead: a number of the copy */
    bool ahead;     /* before the next epoch: the link is of another kind */
    mr_kv_store *store;
    int32_t n_blocks; /* that the store has */
    bool (*told_to_end)(void *ctx);
    void *ctx;
} mr_kv_transfer;

/* Sends the blocks whose bits are set: bit i % 8 of blocks[i / 8]. */
MR_MUST_USE mr_status mr_kv_give(const mr_kv_transfer *t, const uint8_t *blocks, size_t n_bytes, mr_err *err);
/* The same, bit by bit. */
typedef struct mr_kv_giver mr_kv_giver;
/* blocks are copied. */
MR_MUST_USE mr_status mr_kv_giver_create(const mr_kv_transfer *t, const uint8_t *blocks, size_t n_bytes,
                                         mr_kv_giver **out, mr_err *err);
void mr_kv_giver_destroy(mr_kv_giver *g);
/* Sends one block if there is room. Waits for a device that still works until the deadline at most. *out_done: the
 * receiver has all blocks. */
MR_MUST_USE mr_status mr_kv_giver_turn(mr_kv_giver *g, int64_t deadline_ns, bool *out_sent, bool *out_done,
                                       mr_err *err);

/* Receives n_due blocks into the store. patience_ns: how long no block may come. */
MR_MUST_USE mr_status mr_kv_take(const mr_kv_transfer *t, int32_t n_due, int64_t patience_ns, mr_err *err);
/* Where mr_kv_take is not called: drops the blocks that come on the link of this epoch, so that the sender's buffers
 * get free. peer: any number; there is no link to this rank itself, nor to one that is not below n_ranks. */
void mr_kv_refuse(mr_channel *channel, int32_t peer, int32_t n_ranks, bool ahead, uint32_t epoch);

#endif
