// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/give_kv.h"

#include <string.h>

#include "engine/base/log.h"
#include "worker/kv_transfer.h"

void mr_kv_wish_read(const Millrace__GiveKv *message, mr_kv_wish *out) {
    out->kv_epoch = message->kv_epoch;
    out->epoch = message->epoch;
    out->to = (int32_t)message->to;
    out->n_bytes = message->blocks.len < sizeof out->blocks ? message->blocks.len : sizeof out->blocks;
    memcpy(out->blocks, message->blocks.data, out->n_bytes);
}

void mr_kv_wish_grant(const mr_kv_wish *wish, mr_channel *channel, int32_t coordinator, mr_kept_kv *kept,
                      bool (*told_to_end)(void *ctx), void *ctx) {
    mr_err err;
    mr_status status = MR_OK;
    if (!kept->store || kept->epoch != wish->kv_epoch) {
        status = mr_err_set(&err, MR_E_NOT_FOUND, "there are none of epoch %u", wish->kv_epoch);
    } else if (wish->to >= coordinator || wish->to == channel->self) {
        status = mr_err_set(&err, MR_E_PROTOCOL, "there is no link to rank %d", (int)wish->to);
    } else {
        const mr_kv_transfer transfer = {.channel = channel,
                                         .peer = wish->to,
                                         .epoch = wish->epoch,
                                         .store = kept->store,
                                         .n_blocks = mr_kv_store_n_blocks(kept->store),
                                         .told_to_end = told_to_end,
                                         .ctx = ctx};
        status = mr_kv_give(&transfer, wish->blocks, wish->n_bytes, &err);
    }
    if (status != MR_OK)
        mr_log_write(MR_LOG_WARN, "worker", "KV blocks were not sent to rank %d: %s", (int)wish->to, err.text);
    mr_kept_kv_drop(kept);
}
