/* worker/lobby/give_kv.h - answers GiveKv: sends KV blocks to the rank that gets, or has, the layers; while the stage
 * runs, or after its end.
 * Owns:    the link, in a giving. Threads: bound to the step thread.
 * Errors:  what goes wrong is logged only: the receiver notices it, too. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_GIVE_KV_H
#define MR_WORKER_LOBBY_GIVE_KV_H

#include "proto/channel.h"
#include "proto/limits.h"
#include "proto/millrace.pb-c.h"
#include "worker/kv_transfer.h"
#include "worker/stage/kept_kv.h"

/* A copy of a GiveKv message, which lives only until the next message. */
typedef struct mr_kv_wish {
    uint32_t kv_epoch, epoch;
    int32_t to;
    bool ahead;
    size_t n_bytes;
    uint8_t blocks[MR_MAX_GIVEN_KV_BYTES];
} mr_kv_wish;

/* What a rank gives while its stage runs. {0}: nothing. */
typedef struct mr_kv_giving {
    mr_kv_giver *giver;
    int64_t next_ns; /* when the next block may go */
} mr_kv_giving;

void mr_kv_wish_read(const Millrace__GiveKv *message, mr_kv_wish *out);
/* Without a stage: sends the blocks, and frees all that is kept. told_to_end: gives up when it returns true. */
void mr_kv_wish_grant(const mr_kv_wish *wish, mr_channel *channel, int32_t coordinator, mr_kept_kv *kept,
                      bool (*told_to_end)(void *ctx), void *ctx);

/* With a stage, and a wish `ahead`: begins to send blocks of the store that the stage uses. */
void mr_kv_giving_begin(mr_kv_giving *g, const mr_kv_wish *wish, mr_channel *channel, int32_t coordinator,
                        const mr_kept_kv *kept);
/* Sends a block if one is due. Call often, on the step thread. */
void mr_kv_giving_turn(mr_kv_giving *g);
/* When the next block may go; MR_NEVER: none is left. */
int64_t mr_kv_giving_due_ns(const mr_kv_giving *g);
void mr_kv_giving_end(mr_kv_giving *g);

#endif
