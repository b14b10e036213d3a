/* worker/kv_transfer.c - both ends of a link that carries KV blocks, in ascending order of their numbers. The sender
 * has no stage in the epoch of the link, so the link of activations between the two ranks is free. That of logits,
 * which go to the coordinator, is free between any two ranks. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/kv_transfer.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "proto/link.h"

enum { N_SLOTS = 4 };
/* The receiver may have to load its layers before it takes the first block. */
static const int64_t GIVER_PATIENCE_NS = 60 * MR_NS_PER_S, LOOK_NS = 5 * MR_NS_PER_MS;

struct mr_kv_giver {
    mr_kv_transfer transfer;
    mr_outbox *out;
    size_t block_bytes, n_bytes;
    int32_t next;     /* no block below is still to be sent */
    uint8_t *payload; /* where block next is being copied to; NULL: it is not */
    mr_fence fence;   /* of the copy */
    uint8_t blocks[]; /* [n_bytes] */
};

static mr_link_kind kind_of(bool ahead) {
    return ahead ? MR_LINK_LOGITS : MR_LINK_ACTIVATIONS;
}

static mr_status check_bytes(size_t block_bytes, mr_err *err) {
    if (block_bytes > 0 && block_bytes <= UINT32_MAX)
        return MR_OK;
    return mr_err_set(err, MR_E_UNSUPPORTED, "KV blocks of %zu bytes are not sent", block_bytes);
}

/* How long one end has waited. */
typedef struct patience {
    int64_t most_ns;
    int64_t moved_ns;  /* when the last block went */
    int64_t looked_ns; /* when told_to_end was asked */
} patience;

static patience patience_of(int64_t most_ns) {
    int64_t now_ns = mr_clock_now_ns();
    return (patience){.most_ns = most_ns, .moved_ns = now_ns, .looked_ns = now_ns};
}

/* Asks told_to_end now and then, and waits for the channel if no block has moved. */
static mr_status go_on(const mr_kv_transfer *t, patience *p, bool has_moved, mr_err *err) {
    int64_t now_ns = mr_clock_now_ns();
    char name[MR_CHANNEL_NAME_BYTES];
    if (!has_moved || now_ns - p->looked_ns >= LOOK_NS) {
        p->looked_ns = now_ns;
        if (t->told_to_end && t->told_to_end(t->ctx))
            return mr_err_set(err, MR_E_CANCELLED, "told to end");
    }
    if (has_moved) {
        p->moved_ns = now_ns;
        return MR_OK;
    }
    if (now_ns - p->moved_ns >= p->most_ns)
        return mr_err_set(err, MR_E_TIMEOUT, "%s moves no KV block", mr_channel_peer_name(t->channel, t->peer, name));
    return mr_channel_wait(t->channel, now_ns + LOOK_NS, err);
}

mr_status mr_kv_giver_create(const mr_kv_transfer *t, const uint8_t *blocks, size_t n_bytes, mr_kv_giver **out,
                             mr_err *err) {
    size_t block_bytes = mr_kv_store_block_bytes(t->store);
    mr_status status = check_bytes(block_bytes, err);
    mr_kv_giver *g = status == MR_OK ? mr_alloc(sizeof *g + n_bytes) : NULL;
    if (status == MR_OK && !g)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory to send KV blocks");
    if (status != MR_OK)
        return status;
    *g = (mr_kv_giver){.transfer = *t, .block_bytes = block_bytes, .n_bytes = n_bytes};
    memcpy(g->blocks, blocks, n_bytes);
    status = mr_outbox_create(t->channel, t->peer, kind_of(t->ahead), t->epoch, N_SLOTS, block_bytes, &g->out, err);
    if (status != MR_OK) {
        mr_kv_giver_destroy(g);
        return status;
    }
    *out = g;
    return MR_OK;
}

void mr_kv_giver_destroy(mr_kv_giver *g) {
    bool ignored;
    if (!g)
        return;
    if (g->payload) /* the copy still writes to it */
        (void)!mr_kv_store_has_got(g->transfer.store, g->fence, MR_NEVER, &ignored, NULL);
    mr_outbox_destroy(g->out);
    mr_free(g);
}

static bool is_due(const mr_kv_giver *g, int32_t block) {
    return (size_t)block / 8 < g->n_bytes && g->blocks[block / 8] >> block % 8 & 1;
}

/* Begins to copy the next block, if there is a free buffer. */
static mr_status begin_block(mr_kv_giver *g, mr_err *err) {
    uint8_t *payload = NULL;
    mr_status status = mr_outbox_reserve(g->out, &payload, err);
    if (status != MR_OK || !payload)
        return status;
    g->payload = payload; /* after an error, too: parts of the block may be under way */
    return mr_kv_store_get_block(g->transfer.store, g->next, payload, &g->fence, err);
}

mr_status mr_kv_giver_turn(mr_kv_giver *g, int64_t deadline_ns, bool *out_sent, bool *out_done, mr_err *err) {
    mr_status status = MR_OK;
    bool is_here = false;
    *out_sent = *out_done = false;
    while (g->next < g->transfer.n_blocks && !is_due(g, g->next))
        g->next++;
    if (g->next == g->transfer.n_blocks)
        return mr_outbox_flushed(g->out, out_done, err);
    if (!g->payload)
        status = begin_block(g, err);
    if (status == MR_OK && g->payload)
        status = mr_kv_store_has_got(g->transfer.store, g->fence, deadline_ns, &is_here, err);
    if (status != MR_OK || !is_here)
        return status;
    const mr_frame frame = {
        .step = (uint64_t)g->next, .rows = 1, .row_bytes = (uint32_t)g->block_bytes, .payload_bytes = g->block_bytes};
    status = mr_outbox_send(g->out, &frame, err);
    *out_sent = status == MR_OK;
    g->payload = NULL;
    g->next += *out_sent;
    return status;
}

mr_status mr_kv_give(const mr_kv_transfer *t, const uint8_t *blocks, size_t n_bytes, mr_err *err) {
    mr_kv_giver *g = NULL;
    patience p = patience_of(GIVER_PATIENCE_NS);
    bool sent, done = false;
    mr_status status = mr_kv_giver_create(t, blocks, n_bytes, &g, err);
    while (status == MR_OK && !done) {
        status = mr_kv_giver_turn(g, mr_clock_now_ns() + LOOK_NS, &sent, &done, err);
        if (status == MR_OK && !done)
            status = go_on(t, &p, sent, err);
    }
    mr_kv_giver_destroy(g);
    return status;
}

/* Takes the block that has come, if one has. *last: the number of the block before; -1: none. */
static mr_status take_block(const mr_kv_transfer *t, mr_inbox *in, size_t block_bytes, int64_t *last, bool *out_taken,
                            mr_err *err) {
    const uint8_t *payload = NULL;
    mr_frame frame;
    mr_status status = mr_inbox_peek(in, &frame, &payload, err);
    *out_taken = status == MR_OK && payload;
    if (!*out_taken)
        return status;
    if (frame.step >= (uint64_t)t->n_blocks || (int64_t)frame.step <= *last || frame.rows != 1 ||
        frame.row_bytes != block_bytes || frame.by_device || frame.payload_bytes != block_bytes)
        return mr_err_set(err, MR_E_PROTOCOL, "KV block %llu of %u bytes, where one of %zu bytes above %lld is due",
                          (unsigned long long)frame.step, frame.row_bytes, block_bytes, (long long)*last);
    status = mr_kv_store_set_block(t->store, (int32_t)frame.step, payload, err);
    *last = (int64_t)frame.step;
    return status == MR_OK ? mr_inbox_release(in, err) : status;
}

mr_status mr_kv_take(const mr_kv_transfer *t, int32_t n_due, int64_t patience_ns, mr_err *err) {
    size_t block_bytes = mr_kv_store_block_bytes(t->store);
    patience p = patience_of(patience_ns);
    int64_t last = -1;
    mr_inbox *in = NULL;
    mr_status status = check_bytes(block_bytes, err);
    if (status == MR_OK)
        status = mr_inbox_create(t->channel, t->peer, kind_of(t->ahead), t->epoch, N_SLOTS, block_bytes, &in, err);
    for (int32_t n = 0; n < n_due && status == MR_OK;) {
        bool taken;
        status = take_block(t, in, block_bytes, &last, &taken, err);
        n += taken;
        if (status == MR_OK && n < n_due)
            status = go_on(t, &p, taken, err);
    }
    mr_inbox_destroy(in);
    return status;
}

void mr_kv_refuse(mr_channel *channel, int32_t peer, int32_t n_ranks, bool ahead, uint32_t epoch) {
    if (peer >= 0 && peer < n_ranks && peer != channel->self)
        mr_link_discard(channel, peer, kind_of(ahead), epoch, INT32_MAX);
}
