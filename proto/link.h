/* proto/link.h - rings of posted receives and of send buffers over a channel: how every message travels.
 * Owns:    its buffers (one allocation at create). Borrows: the channel, which outlives it.
 * Threads: bound to the thread of the channel.
 * Errors:  MR_E_PEER_LOST, which stays; MR_E_PROTOCOL about one message, after which the link goes on;
 *          MR_E_NO_MEMORY when the channel has no free request.
 * After create nothing is allocated. Messages of one link arrive in the order in which they were sent. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_LINK_H
#define MR_PROTO_LINK_H

#include "proto/channel.h"
#include "proto/frame.h"
#include "proto/messages.h"

/* What a link carries; part of the tag. The low bits of the epoch are the other part. Between two endpoints there is at
 * most one link of a kind, direction and epoch at a time. */
typedef enum mr_link_kind {
    MR_LINK_CONTROL = MR_FRAME_CONTROL,         /* coordinator to a stage */
    MR_LINK_ACTIVATIONS = MR_FRAME_ACTIVATIONS, /* a stage to the next */
    MR_LINK_TOKENS = MR_FRAME_TOKENS,           /* tail to head, tail to coordinator */
    MR_LINK_LOGITS = MR_FRAME_LOGITS,           /* tail to coordinator */
    MR_LINK_REPORT = MR_FRAME_REPORT,           /* a stage to the coordinator: ready, progress, errors */
    MR_LINK_FILE = MR_FRAME_FILE,               /* a rank without the model file to one that has it, and back */
} mr_link_kind;

/* The tag of a link: 12 bits of the epoch, 3 bits of the kind; at most MR_CHANNEL_MAX_TAG. */
static inline uint32_t mr_link_tag(mr_link_kind kind, uint32_t epoch) {
    return (epoch & 0xfff) << 3 | (uint32_t)kind;
}

typedef struct mr_inbox mr_inbox;
typedef struct mr_outbox mr_outbox;

/* Posts n_slots receives of up to payload_bytes each (plus header) from peer. MR_E_INVALID: no slots, or sizes that do
 * not fit the address space. */
MR_MUST_USE mr_status mr_inbox_create(mr_channel *ch, int32_t peer, mr_link_kind kind, uint32_t epoch, int32_t n_slots,
                                      size_t payload_bytes, mr_inbox **out, mr_err *err);
void mr_inbox_destroy(mr_inbox *in);
/* The oldest message that was not released: *out_payload (64-byte aligned) is NULL when none has arrived. The same
 * message is returned until it is released. A frame of another epoch is dropped and the next one looked at (at most one
 * round of the ring: NULL after that, and a wait returns at once). A malformed frame is MR_E_PROTOCOL and names the
 * peer; it is dropped. MR_E_PEER_LOST comes after all messages that had arrived. */
MR_MUST_USE mr_status mr_inbox_peek(mr_inbox *in, mr_frame *out, const uint8_t **out_payload, mr_err *err);
/* Gives the peeked message's slot back: posts its receive again. Without a peeked message nothing happens. On an error
 * the message is still peeked. That the peer is gone is no error here: the next peek will say so. */
MR_MUST_USE mr_status mr_inbox_release(mr_inbox *in, mr_err *err);

MR_MUST_USE mr_status mr_outbox_create(mr_channel *ch, int32_t peer, mr_link_kind kind, uint32_t epoch, int32_t n_slots,
                                       size_t payload_bytes, mr_outbox **out, mr_err *err);
void mr_outbox_destroy(mr_outbox *out);
/* A free payload buffer (64-byte aligned) of payload_bytes, or NULL while all slots are under way. The same buffer
 * until it is sent. */
MR_MUST_USE mr_status mr_outbox_reserve(mr_outbox *out, uint8_t **out_payload, mr_err *err);
/* Seals and sends the reserved buffer with frame->payload_bytes of payload; kind and epoch are filled in. On an error
 * it stays reserved. MR_E_INVALID: nothing is reserved, or the payload is longer than the buffer or not of its rows. */
MR_MUST_USE mr_status mr_outbox_send(mr_outbox *out, const mr_frame *frame, mr_err *err);
/* Packs a message of millrace.proto into a free buffer and sends it; *out_sent stays false while all slots are under
 * way. */
MR_MUST_USE mr_status mr_outbox_send_message(mr_outbox *out, const ProtobufCMessage *message, bool *out_sent,
                                             mr_err *err);
/* Waits until every send has completed or the peer is gone, until deadline_ns at most. */
void mr_outbox_flush(mr_outbox *out, int64_t deadline_ns);
/* True when every send has completed. */
MR_MUST_USE mr_status mr_outbox_flushed(mr_outbox *out, bool *out_flushed, mr_err *err);

#endif
