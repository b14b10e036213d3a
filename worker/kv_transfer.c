/* worker/kv_transfer.c - both ends of a link that carries KV blocks. The sender has no stage in the epoch, so the link
 * of activations between the two ranks is free. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/kv_transfer.h"

#include "engine/base/clock.h"
#include "proto/link.h"

enum { N_SLOTS = 4 };
static const int64_t PATIENCE_NS = 5 * MR_NS_PER_S, LOOK_NS = MR_NS_PER_S / 10;

static mr_status check_bytes(size_t block_bytes, mr_err *err) {
    if (block_bytes > 0 && block_bytes <= UINT32_MAX)
        return MR_OK;
    return mr_err_set(err, MR_E_UNSUPPORTED, "KV blocks of %zu bytes are not sent", block_bytes);
}

/* Waits for the channel. since_ns: when the last block went. */
static mr_status wait(const mr_kv_transfer *t, int64_t since_ns, mr_err *err) {
    int64_t now_ns = mr_clock_now_ns();
    char name[MR_CHANNEL_NAME_BYTES];
    if (t->told_to_end && t->told_to_end(t->ctx))
        return mr_err_set(err, MR_E_CANCELLED, "told to end");
    if (now_ns - since_ns >= PATIENCE_NS)
        return mr_err_set(err, MR_E_TIMEOUT, "%s moves no KV block", mr_channel_peer_name(t->channel, t->peer, name));
    return mr_channel_wait(t->channel, now_ns + LOOK_NS, err);
}

static mr_status send_block(const mr_kv_transfer *t, mr_outbox *out, int32_t block, size_t block_bytes, mr_err *err) {
    const mr_frame frame = {
        .step = (uint64_t)block, .rows = 1, .row_bytes = (uint32_t)block_bytes, .payload_bytes = block_bytes};
    int64_t since_ns = mr_clock_now_ns();
    uint8_t *payload = NULL;
    mr_status status = mr_outbox_reserve(out, &payload, err);
    while (status == MR_OK && !payload) {
        status = wait(t, since_ns, err);
        if (status == MR_OK)
            status = mr_outbox_reserve(out, &payload, err);
    }
    if (status != MR_OK)
        return status;
    mr_kv_store_get_block(t->store, block, payload);
    return mr_outbox_send(out, &frame, err);
}

mr_status mr_kv_give(const mr_kv_transfer *t, const uint8_t *blocks, size_t n_bytes, mr_err *err) {
    size_t block_bytes = mr_kv_store_block_bytes(t->store);
    mr_outbox *out = NULL;
    mr_status status = check_bytes(block_bytes, err);
    if (status == MR_OK)
        status = mr_outbox_create(t->channel, t->peer, MR_LINK_ACTIVATIONS, t->epoch, N_SLOTS, block_bytes, &out, err);
    for (int32_t i = 0; i < t->n_blocks && (size_t)i / 8 < n_bytes && status == MR_OK; i++)
        if (blocks[i / 8] >> i % 8 & 1)
            status = send_block(t, out, i, block_bytes, err);
    int64_t since_ns = mr_clock_now_ns();
    bool flushed = false;
    while (status == MR_OK && !flushed) {
        status = mr_outbox_flushed(out, &flushed, err);
        if (status == MR_OK && !flushed)
            status = wait(t, since_ns, err);
    }
    mr_outbox_destroy(out);
    return status;
}

/* Takes the block that has come, if one has. */
static mr_status take_block(const mr_kv_transfer *t, mr_inbox *in, size_t block_bytes, bool *out_taken, mr_err *err) {
    const uint8_t *payload = NULL;
    mr_frame frame;
    mr_status status = mr_inbox_peek(in, &frame, &payload, err);
    *out_taken = status == MR_OK && payload;
    if (!*out_taken)
        return status;
    if (frame.step >= (uint64_t)t->n_blocks || frame.rows != 1 || frame.row_bytes != block_bytes)
        return mr_err_set(err, MR_E_PROTOCOL, "KV block %llu of %u bytes, where blocks below %d of %zu bytes are due",
                          (unsigned long long)frame.step, frame.row_bytes, (int)t->n_blocks, block_bytes);
    mr_kv_store_set_block(t->store, (int32_t)frame.step, payload);
    return mr_inbox_release(in, err);
}

mr_status mr_kv_take(const mr_kv_transfer *t, int32_t n_due, mr_err *err) {
    size_t block_bytes = mr_kv_store_block_bytes(t->store);
    int64_t since_ns = mr_clock_now_ns();
    mr_inbox *in = NULL;
    mr_status status = check_bytes(block_bytes, err);
    if (status == MR_OK)
        status = mr_inbox_create(t->channel, t->peer, MR_LINK_ACTIVATIONS, t->epoch, N_SLOTS, block_bytes, &in, err);
    for (int32_t n = 0; n < n_due && status == MR_OK;) {
        bool taken;
        status = take_block(t, in, block_bytes, &taken, err);
        if (status == MR_OK && !taken)
            status = wait(t, since_ns, err);
        n += taken;
        since_ns = taken ? mr_clock_now_ns() : since_ns;
    }
    mr_inbox_destroy(in);
    return status;
}
