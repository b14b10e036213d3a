/* worker/lobby/give_kv.c - sends KV blocks. While the stage runs, a block goes in each millisecond at most. The blocks
 * are whole ones, to which no step writes any more. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/give_kv.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"

static const int64_t PAUSE_NS = MR_NS_PER_MS;

void mr_kv_wish_read(const Millrace__GiveKv *message, mr_kv_wish *out) {
    out->kv_epoch = message->kv_epoch;
    out->epoch = message->epoch;
    out->to = (int32_t)message->to;
    out->ahead = message->ahead;
    out->n_bytes = message->blocks.len < sizeof out->blocks ? message->blocks.len : sizeof out->blocks;
    memcpy(out->blocks, message->blocks.data, out->n_bytes);
}

/* store: NULL: there is none. */
static mr_status describe(const mr_kv_wish *wish, mr_channel *channel, int32_t coordinator, const mr_kept_kv *kept,
                          mr_kv_store *store, mr_kv_transfer *out, mr_err *err) {
    if (!store || kept->epoch != wish->kv_epoch)
        return mr_err_set(err, MR_E_NOT_FOUND, "there are none of epoch %u", wish->kv_epoch);
    if (wish->to >= coordinator || wish->to == channel->self)
        return mr_err_set(err, MR_E_PROTOCOL, "there is no link to rank %d", (int)wish->to);
    *out = (mr_kv_transfer){.channel = channel,
                            .peer = wish->to,
                            .epoch = wish->epoch,
                            .ahead = wish->ahead,
                            .store = store,
                            .n_blocks = mr_kv_store_n_blocks(store)};
    return MR_OK;
}

static void say(int32_t to, const mr_err *why) {
    mr_log_write(MR_LOG_WARN, "worker", "KV blocks were not sent to rank %d: %s", (int)to, why->text);
}

void mr_kv_wish_grant(const mr_kv_wish *wish, mr_channel *channel, int32_t coordinator, mr_kept_kv *kept,
                      bool (*told_to_end)(void *ctx), void *ctx) {
    mr_kv_transfer transfer;
    mr_err err;
    if (wish->ahead) /* the stage has ended meanwhile; another message says what becomes of the blocks */
        return;
    mr_status status = describe(wish, channel, coordinator, kept, kept->store, &transfer, &err);
    transfer.told_to_end = told_to_end;
    transfer.ctx = ctx;
    if (status == MR_OK)
        status = mr_kv_give(&transfer, wish->blocks, wish->n_bytes, &err);
    if (status != MR_OK)
        say(wish->to, &err);
    mr_kept_kv_drop(kept);
}

void mr_kv_giving_begin(mr_kv_giving *g, const mr_kv_wish *wish, mr_channel *channel, int32_t coordinator,
                        const mr_kept_kv *kept) {
    mr_kv_transfer transfer;
    mr_err err;
    mr_kv_giving_end(g);
    mr_status status = describe(wish, channel, coordinator, kept, wish->ahead ? kept->used : NULL, &transfer, &err);
    if (status == MR_OK)
        status = mr_kv_giver_create(&transfer, wish->blocks, wish->n_bytes, &g->giver, &err);
    if (status != MR_OK)
        say(wish->to, &err);
}

void mr_kv_giving_turn(mr_kv_giving *g) {
    bool sent, done;
    mr_err err;
    if (!g->giver || mr_clock_now_ns() < g->next_ns)
        return;
    mr_status status = mr_kv_giver_turn(g->giver, 0, &sent, &done, &err);
    g->next_ns = mr_clock_now_ns() + PAUSE_NS;
    if (status != MR_OK)
        mr_log_write(MR_LOG_WARN, "worker", "KV blocks were not sent: %s", err.text);
    if (status != MR_OK || done)
        mr_kv_giving_end(g);
}

int64_t mr_kv_giving_due_ns(const mr_kv_giving *g) {
    return g->giver ? g->next_ns : MR_NEVER;
}

void mr_kv_giving_end(mr_kv_giving *g) {
    mr_kv_giver_destroy(g->giver);
    *g = (mr_kv_giving){0};
}
