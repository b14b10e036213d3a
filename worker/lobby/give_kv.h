/* worker/lobby/give_kv.h - answers GiveKv: sends KV blocks of an ended stage to the rank that has its layers now.
 * Owns:    nothing. Threads: bound to the step thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_GIVE_KV_H
#define MR_WORKER_LOBBY_GIVE_KV_H

#include "proto/channel.h"
#include "proto/limits.h"
#include "proto/millrace.pb-c.h"
#include "worker/stage/kept_kv.h"

/* A copy of a GiveKv message, which lives only until the next message. */
typedef struct mr_kv_wish {
    uint32_t kv_epoch, epoch;
    int32_t to;
    size_t n_bytes;
    uint8_t blocks[MR_MAX_GIVEN_KV_BYTES];
} mr_kv_wish;

void mr_kv_wish_read(const Millrace__GiveKv *message, mr_kv_wish *out);
/* Sends the blocks, and frees all that is kept. What goes wrong is logged: the receiver notices it, too. told_to_end:
 * gives up when it returns true. */
void mr_kv_wish_grant(const mr_kv_wish *wish, mr_channel *channel, int32_t coordinator, mr_kept_kv *kept,
                      bool (*told_to_end)(void *ctx), void *ctx);

#endif
