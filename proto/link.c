/* proto/link.c - the ring of slots behind an inbox and an outbox. A slot holds one frame and has at most one request of
 * the channel. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/link.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

/* A slot begins on a multiple of 64 bytes. The header begins at HEADER_AT, so that the payload is aligned, too. */
enum { ALIGNMENT = 64, HEADER_AT = ALIGNMENT - MR_FRAME_BYTES };

/* The common part of inbox and outbox. */
typedef struct ring {
    mr_channel *ch;
    int32_t peer, n_slots;
    mr_frame_kind kind;
    uint32_t epoch, tag;
    size_t payload_bytes, slot_bytes, block_bytes;
    mr_frame_key *key;            /* of the frames; NULL: they have plain checksums */
    bool has_refused;             /* a frame that was dropped was logged */
    bool lost;                    /* the peer is gone; failed requests stay in requests until they are cancelled */
    uint8_t *slots;               /* [n_slots] of slot_bytes, aligned */
    mr_channel_request *requests; /* [n_slots]; 0: the slot has no request */
} ring;

struct mr_inbox {
    ring ring;
    int32_t head;  /* the slot of the oldest message */
    bool peeked;   /* the slot at head holds a peeked message with the header `frame` */
    bool unposted; /* the message at head was dropped, but its receive could not be posted again yet */
    mr_frame frame;
};

struct mr_outbox {
    ring ring;
    int32_t next;                 /* the slot at which the search for a free slot begins */
    int32_t reserved;             /* the reserved slot; -1: none */
    int32_t kept[MR_OUTBOX_KEPT]; /* kept slots, the first one first */
    int32_t n_kept;
};

static uint8_t *ring_frame(const ring *r, int32_t slot) {
    return r->slots + (size_t)slot * r->slot_bytes + HEADER_AT;
}

static uint8_t *ring_payload(const ring *r, int32_t slot) {
    return ring_frame(r, slot) + MR_FRAME_BYTES;
}

/* Allocates one block for the object (object_bytes, which begin with the ring; the rest zeros), the requests and the
 * slots. NULL: no memory. */
static void *ring_alloc(size_t object_bytes, ring r) {
    size_t n = (size_t)r.n_slots, all_slots, bytes, head = mr_round_up(object_bytes, sizeof(mr_channel_request));
    if (!mr_add_size(r.payload_bytes, 2 * ALIGNMENT - 1, &r.slot_bytes))
        return NULL;
    r.slot_bytes = r.slot_bytes / ALIGNMENT * ALIGNMENT;
    if (!mr_mul_size(n, r.slot_bytes, &all_slots) ||
        !mr_add_size(all_slots, head + n * sizeof(mr_channel_request) + ALIGNMENT, &bytes))
        return NULL;
    char *block = mr_alloc(bytes);
    if (!block)
        return NULL;
    r.block_bytes = bytes;
    r.requests = (mr_channel_request *)(block + head);
    uintptr_t at = (uintptr_t)(r.requests + n);
    r.slots = (uint8_t *)(r.requests + n) + (-at & (ALIGNMENT - 1));
    *(ring *)block = r;
    return block;
}

static ring ring_wish(mr_channel *ch, int32_t peer, mr_link_kind kind, uint32_t epoch, int32_t n_slots,
                      size_t payload_bytes) {
    return (ring){.ch = ch,
                  .peer = peer,
                  .n_slots = n_slots,
                  .kind = (mr_frame_kind)kind,
                  .epoch = epoch,
                  .tag = mr_link_tag(kind, epoch),
                  .payload_bytes = payload_bytes};
}

/* Checks the wish and allocates an inbox, or with `sends` an outbox. The ring is the first member of both. */
static mr_status ring_create(size_t object_bytes, const ring *wish, bool sends, void **out, mr_err *err) {
    if (wish->peer < 0 || wish->peer >= wish->ch->n_peers || wish->n_slots < 1)
        return mr_err_set(err, MR_E_INVALID, "link of %" PRId32 " slots with endpoint %" PRId32 " of %" PRId32,
                          wish->n_slots, wish->peer, wish->ch->n_peers);
    ring r = *wish;
    if (mr_channel_has_secret(wish->ch)) {
        const mr_frame_link link = {.kind = (uint32_t)wish->kind,
                                    .epoch = wish->epoch,
                                    .from = sends ? wish->ch->self : wish->peer,
                                    .to = sends ? wish->peer : wish->ch->self,
                                    .has_gaps = wish->epoch == 0};
        r.key = mr_frame_key_create(wish->ch->secret, &link);
    }
    if (r.key || !mr_channel_has_secret(wish->ch))
        *out = ring_alloc(object_bytes, r);
    if (*out)
        return MR_OK;
    mr_frame_key_destroy(r.key);
    return mr_err_set(err, MR_E_NO_MEMORY,
                      "no memory for a link with endpoint %" PRId32 ": %" PRId32 " slots of %zu bytes", wish->peer,
                      wish->n_slots, wish->payload_bytes);
}

/* Marks the peer as lost, and sets the error. */
static mr_status ring_lost(ring *r, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    r->lost = true;
    return mr_err_set(err, MR_E_PEER_LOST, "%s is gone", mr_channel_peer_name(r->ch, r->peer, name));
}

/* Cancels all requests. The channel frees the block if it may still use a buffer in the block. */
static void ring_destroy(ring *r, void *block) {
    bool ours = true;
    mr_frame_key_destroy(r->key);
    r->key = NULL;
    for (int32_t i = 0; i < r->n_slots; i++)
        ours = mr_channel_cancel(r->ch, r->requests[i]) && ours;
    if (ours)
        mr_free(block);
    else
        mr_channel_free_later(r->ch, r->requests, r->n_slots, block, r->block_bytes);
}

static mr_status inbox_post(mr_inbox *in, int32_t slot, mr_err *err) {
    ring *r = &in->ring;
    return mr_channel_post_recv(r->ch, r->peer, r->tag, ring_frame(r, slot), MR_FRAME_BYTES + r->payload_bytes,
                                &r->requests[slot], err);
}

mr_status mr_inbox_create(mr_channel *ch, int32_t peer, mr_link_kind kind, uint32_t epoch, int32_t n_slots,
                          size_t payload_bytes, mr_inbox **out, mr_err *err) {
    const ring wish = ring_wish(ch, peer, kind, epoch, n_slots, payload_bytes);
    void *block = NULL;
    mr_status status = ring_create(sizeof(mr_inbox), &wish, false, &block, err);
    for (int32_t i = 0; i < n_slots && status == MR_OK; i++)
        status = inbox_post(block, i, err);
    if (status == MR_OK)
        *out = block;
    else
        mr_inbox_destroy(block);
    return status;
}

void mr_inbox_destroy(mr_inbox *in) {
    if (!in)
        return;
    const ring r = in->ring;
    ring_destroy(&in->ring, in);
    if (r.epoch != 0) /* another link of epoch 0 may have this tag, and its first message may be here already */
        mr_channel_discard(r.ch, r.peer, r.tag, MR_FRAME_BYTES + r.payload_bytes);
}

void mr_link_discard(mr_channel *ch, int32_t peer, mr_link_kind kind, uint32_t epoch, size_t payload_bytes) {
    MR_ASSERT(epoch != 0); /* where tags are shared */
    mr_channel_discard(ch, peer, mr_link_tag(kind, epoch), MR_FRAME_BYTES + payload_bytes);
}

static void *ring_memory(ring *r, size_t *out_bytes) {
    *out_bytes = (size_t)r->n_slots * r->slot_bytes;
    return r->slots;
}

void *mr_inbox_memory(mr_inbox *in, size_t *out_bytes) {
    return ring_memory(&in->ring, out_bytes);
}

/* Posts the receive of the slot at head again, and moves head to the next slot. If the peer is lost, the slot stays
 * without a request, and the peek that reaches this slot reports the loss. */
static mr_status inbox_advance(mr_inbox *in, mr_err *err) {
    mr_status status = inbox_post(in, in->head, err);
    if (status != MR_OK && status != MR_E_PEER_LOST)
        return status;
    in->peeked = in->unposted = false;
    in->head = in->head + 1 < in->ring.n_slots ? in->head + 1 : 0;
    return MR_OK;
}

/* Drops the message at head. status MR_OK: a frame of another epoch; else the error of a malformed frame. */
static mr_status inbox_drop(mr_inbox *in, mr_status status, const mr_err *text, mr_err *err) {
    mr_err ignored;
    in->unposted = inbox_advance(in, &ignored) != MR_OK;
    char name[MR_CHANNEL_NAME_BYTES];
    if (status == MR_OK)
        return MR_OK;
    return mr_err_set(err, status, "message from %s: %s", mr_channel_peer_name(in->ring.ch, in->ring.peer, name),
                      text->text);
}

/* Says that a frame was refused. Only the first one of a link is logged. */
static void note_refused(ring *r, const char *why) {
    char name[MR_CHANNEL_NAME_BYTES];
    if (!r->has_refused)
        mr_log_write(MR_LOG_WARN, "link", "message from %s: %s", mr_channel_peer_name(r->ch, r->peer, name), why);
    r->has_refused = true;
}

/* Whether frames are dropped that somebody without the key has sent: links of epoch 0 have to work on. A link of
 * another epoch ends with an error, and so does its epoch. */
static bool drops_strangers(const ring *r) {
    return r->key && r->epoch == 0;
}

/* Tests the slot at head. *out_arrived: a message has arrived, and is peeked now or was dropped. */
static mr_status inbox_look(mr_inbox *in, bool *out_arrived, mr_err *err) {
    ring *r = &in->ring;
    mr_err text;
    bool again = false;
    mr_completion c = {.done = false};
    mr_status status = in->unposted ? inbox_advance(in, err) : MR_OK;
    if (status != MR_OK)
        return status;
    if (r->lost || !r->requests[in->head])
        return ring_lost(r, err);
    status = mr_channel_test(r->ch, r->requests[in->head], &c, &text);
    if (status == MR_OK && !c.done) {
        *out_arrived = false;
        return MR_OK;
    }
    if (status == MR_E_PEER_LOST)
        return ring_lost(r, err);
    r->requests[in->head] = 0;
    if (status != MR_OK && status != MR_E_PROTOCOL)
        return mr_err_set(err, status, "%s", text.text);
    if (status == MR_OK)
        status = mr_frame_open_with(ring_frame(r, in->head), c.bytes, r->kind, r->key, &in->frame, &again, &text);
    if (again)
        note_refused(r, "a frame that has come before was refused");
    if (status == MR_E_PROTOCOL && drops_strangers(r)) {
        note_refused(r, text.text);
        status = MR_OK;
        again = true;
    }
    *out_arrived = true;
    in->peeked = status == MR_OK && !again && in->frame.epoch == r->epoch;
    return in->peeked ? MR_OK : inbox_drop(in, status, &text, err);
}

mr_status mr_inbox_peek(mr_inbox *in, mr_frame *out, const uint8_t **out_payload, mr_err *err) {
    bool arrived = true;
    for (int32_t i = 0; i < in->ring.n_slots && arrived && !in->peeked; i++) {
        mr_status status = inbox_look(in, &arrived, err);
        if (status != MR_OK)
            return status;
    }
    if (in->peeked)
        *out = in->frame;
    else if (arrived) /* only messages to drop so far; the next one may have come, too */
        mr_channel_wake(in->ring.ch);
    *out_payload = in->peeked ? ring_payload(&in->ring, in->head) : NULL;
    return MR_OK;
}

mr_status mr_inbox_release(mr_inbox *in, mr_err *err) {
    return in->peeked ? inbox_advance(in, err) : MR_OK;
}

mr_status mr_outbox_create(mr_channel *ch, int32_t peer, mr_link_kind kind, uint32_t epoch, int32_t n_slots,
                           size_t payload_bytes, mr_outbox **out, mr_err *err) {
    const ring wish = ring_wish(ch, peer, kind, epoch, n_slots, payload_bytes);
    void *block = NULL;
    mr_status status = ring_create(sizeof(mr_outbox), &wish, true, &block, err);
    if (status != MR_OK)
        return status;
    *out = block;
    (*out)->reserved = -1;
    mr_frame_key_begin((*out)->ring.key);
    return MR_OK;
}

void mr_outbox_destroy(mr_outbox *out) {
    if (out)
        ring_destroy(&out->ring, out);
}

void *mr_outbox_memory(mr_outbox *out, size_t *out_bytes) {
    return ring_memory(&out->ring, out_bytes);
}

/* Tests the send of a slot, if there is one. *out_free: the slot has no send in flight. */
static mr_status outbox_settle(mr_outbox *out, int32_t slot, bool *out_free, mr_err *err) {
    ring *r = &out->ring;
    mr_completion c = {.done = true};
    mr_status status = MR_OK;
    if (r->requests[slot])
        status = mr_channel_test(r->ch, r->requests[slot], &c, err);
    if (status == MR_E_PEER_LOST)
        return ring_lost(r, err);
    if (status != MR_OK || c.done)
        r->requests[slot] = 0;
    *out_free = c.done;
    return status;
}

static bool is_kept(const mr_outbox *out, int32_t slot) {
    bool kept = false;
    for (int32_t i = 0; i < out->n_kept; i++)
        kept = kept || out->kept[i] == slot;
    return kept;
}

static int32_t slot_after(const mr_outbox *out, int32_t slot) {
    return slot + 1 < out->ring.n_slots ? slot + 1 : 0;
}

mr_status mr_outbox_reserve(mr_outbox *out, uint8_t **out_payload, mr_err *err) {
    if (out->ring.lost)
        return ring_lost(&out->ring, err);
    for (int32_t i = 0; i < out->ring.n_slots && out->reserved < 0; i++) {
        int32_t slot = (int32_t)(((int64_t)out->next + i) % out->ring.n_slots);
        bool is_free = false;
        mr_status status = outbox_settle(out, slot, &is_free, err);
        if (status != MR_OK)
            return status;
        if (is_free && !is_kept(out, slot))
            out->reserved = slot;
    }
    *out_payload = out->reserved < 0 ? NULL : ring_payload(&out->ring, out->reserved);
    return MR_OK;
}

void mr_outbox_keep(mr_outbox *out) {
    MR_ASSERT(out->reserved >= 0 && out->n_kept < MR_OUTBOX_KEPT);
    out->next = slot_after(out, out->reserved);
    out->kept[out->n_kept++] = out->reserved;
    out->reserved = -1;
}

mr_status mr_outbox_send(mr_outbox *out, const mr_frame *frame, mr_err *err) {
    ring *r = &out->ring;
    mr_frame f = *frame;
    mr_err text;
    int32_t slot = out->n_kept > 0 ? out->kept[0] : out->reserved;
    if (out->ring.lost)
        return ring_lost(&out->ring, err);
    if (slot < 0)
        return mr_err_set(err, MR_E_INVALID, "no buffer of the link to endpoint %" PRId32 " is reserved", r->peer);
    if (f.payload_bytes > r->payload_bytes)
        return mr_err_set(err, MR_E_INVALID,
                          "payload of %" PRIu64 " bytes on a link to endpoint %" PRId32 " that takes %zu",
                          f.payload_bytes, r->peer, r->payload_bytes);
    f.kind = r->kind;
    f.epoch = r->epoch;
    if (mr_frame_check_rows(&f, &text) != MR_OK)
        return mr_err_set(err, MR_E_INVALID, "%s", text.text);
    uint8_t *buffer = ring_frame(r, slot);
    mr_frame_seal_with(&f, r->key, buffer);
    mr_status status = mr_channel_post_send(r->ch, r->peer, r->tag, buffer, MR_FRAME_BYTES + (size_t)f.payload_bytes,
                                            &r->requests[slot], err);
    if (status == MR_E_PEER_LOST)
        return ring_lost(&out->ring, err);
    if (status != MR_OK)
        return status;
    mr_frame_key_advance(r->key);
    if (out->n_kept > 0) {
        memmove(out->kept, out->kept + 1, (size_t)--out->n_kept * sizeof *out->kept);
        return MR_OK;
    }
    out->next = slot_after(out, slot);
    out->reserved = -1;
    return MR_OK;
}

mr_status mr_outbox_send_message(mr_outbox *out, const ProtobufCMessage *message, bool *out_sent, mr_err *err) {
    uint8_t *payload = NULL;
    size_t bytes = 0;
    MR_ASSERT(out->n_kept == 0);
    *out_sent = false;
    mr_status status = mr_outbox_reserve(out, &payload, err);
    if (status != MR_OK || !payload)
        return status;
    status = mr_msg_pack(message, payload, out->ring.payload_bytes, &bytes, err);
    const mr_frame frame = {.payload_bytes = bytes};
    if (status == MR_OK)
        status = mr_outbox_send(out, &frame, err);
    *out_sent = status == MR_OK;
    return status;
}

void mr_outbox_flush(mr_outbox *out, int64_t deadline_ns) {
    mr_err ignored;
    bool flushed = false;
    while (mr_outbox_flushed(out, &flushed, &ignored) == MR_OK && !flushed && mr_clock_now_ns() < deadline_ns)
        if (mr_channel_wait(out->ring.ch, deadline_ns, &ignored) != MR_OK)
            return;
}

mr_status mr_outbox_flushed(mr_outbox *out, bool *out_flushed, mr_err *err) {
    bool all = true;
    if (out->ring.lost)
        return ring_lost(&out->ring, err);
    for (int32_t i = 0; i < out->ring.n_slots; i++) {
        bool is_free = false;
        mr_status status = outbox_settle(out, i, &is_free, err);
        if (status != MR_OK)
            return status;
        all = all && is_free;
    }
    *out_flushed = all;
    return MR_OK;
}
