/* proto/link.h - rings of posted receives (inbox) and of send buffers (outbox) over a channel. Every message goes over
 * a link.
 * Owns:    its buffers (one allocation at create). Borrows: the channel, which outlives the link.
 * Threads: bound to the thread of the channel.
 * Errors:  MR_E_PEER_LOST: the peer is gone, and every later call says so, too. MR_E_PROTOCOL: one message is
 *          malformed. Without a secret, and in epoch 0, the link still works. With a secret, in a later epoch, every
 *          later message is refused, too, because a frame is missing before it: the stages have to begin again.
 *          MR_E_NO_MEMORY: the channel has no free request. After create nothing is allocated. Messages of one link
 *          arrive in the order in which they were sent. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_LINK_H
#define MR_PROTO_LINK_H

#include "proto/channel.h"
#include "proto/frame.h"
#include "proto/messages.h"

/* What a link carries. The kind and the low bits of the epoch make the tag. Between two endpoints there is at most one
 * link of a kind, direction and epoch at a time. */
typedef enum mr_link_kind {
    /* Payloads of activations from the memory of a device to that of another one, without frames
     * (proto/carrier_channel.h). No link has this kind. */
    MR_LINK_PAYLOAD = 0,
    MR_LINK_CONTROL = MR_FRAME_CONTROL,         /* coordinator to a stage; between neighbours: proto/device_link.h */
    MR_LINK_ACTIVATIONS = MR_FRAME_ACTIVATIONS, /* a stage to the next stage */
    MR_LINK_TOKENS = MR_FRAME_TOKENS,           /* tail to head, tail to coordinator */
    MR_LINK_LOGITS = MR_FRAME_LOGITS,           /* tail to coordinator */
    MR_LINK_REPORT = MR_FRAME_REPORT,           /* a stage to the coordinator: ready, progress, errors */
    MR_LINK_FILE = MR_FRAME_FILE, /* a rank to a rank that has what it lacks of the model file: requests */
    MR_LINK_FILE_ANSWERS = MR_FRAME_FILE_ANSWER, /* and back: hashes and blocks */
} mr_link_kind;

enum { MR_LINK_EPOCHS = 1 << 12 }; /* epochs whose number differs by a multiple of this have the same tags */

/* The tag of a link: 12 bits of the epoch, 3 bits of the kind; at most MR_CHANNEL_MAX_TAG. */
static inline uint32_t mr_link_tag(mr_link_kind kind, uint32_t epoch) {
    return (epoch & (MR_LINK_EPOCHS - 1)) << 3 | (uint32_t)kind;
}

typedef struct mr_inbox mr_inbox;
typedef struct mr_outbox mr_outbox;

enum { MR_OUTBOX_KEPT = 2 };

/* Posts n_slots receives of up to payload_bytes each (plus header) from peer. MR_E_INVALID: no slots, or no such
 * peer. */
MR_MUST_USE mr_status mr_inbox_create(mr_channel *ch, int32_t peer, mr_link_kind kind, uint32_t epoch, int32_t n_slots,
                                      size_t payload_bytes, mr_inbox **out, mr_err *err);
void mr_inbox_destroy(mr_inbox *in);
/* In place of an inbox: drops the messages of up to payload_bytes (plus header) that come in the next seconds, so that
 * their sends end. epoch: not 0. */
void mr_link_discard(mr_channel *ch, int32_t peer, mr_link_kind kind, uint32_t epoch, size_t payload_bytes);
/* The memory in which messages arrive, valid until the inbox is destroyed: for a device that prepares it for copies. */
void *mr_inbox_memory(mr_inbox *in, size_t *out_bytes);
/* The oldest message that was not released; every call returns the same message until its release. *out_payload is
 * 64-byte aligned; NULL: no message has arrived. Frames that have come before are dropped, and without a secret also
 * frames of another epoch, at most one round of the ring in one call: after a full round *out_payload is NULL, and a
 * wait returns at once. A malformed frame is dropped, and the call returns MR_E_PROTOCOL with the name of the peer.
 * With a secret a frame of another epoch is malformed, because each epoch has its own key. In epoch 0 with a secret,
 * malformed frames are dropped without an error, and the first one is logged. MR_E_PEER_LOST comes after all messages
 * that had arrived. */
MR_MUST_USE mr_status mr_inbox_peek(mr_inbox *in, mr_frame *out, const uint8_t **out_payload, mr_err *err);
/* Releases the peeked message: posts the receive of its slot again. Does nothing without a peeked message. After an
 * error the message is still peeked. A lost peer is no error here: a later peek reports it. */
MR_MUST_USE mr_status mr_inbox_release(mr_inbox *in, mr_err *err);

MR_MUST_USE mr_status mr_outbox_create(mr_channel *ch, int32_t peer, mr_link_kind kind, uint32_t epoch, int32_t n_slots,
                                       size_t payload_bytes, mr_outbox **out, mr_err *err);
void mr_outbox_destroy(mr_outbox *out);
/* The memory of the messages to send, as mr_inbox_memory. */
void *mr_outbox_memory(mr_outbox *out, size_t *out_bytes);
/* A free payload buffer of payload_bytes, 64-byte aligned; NULL: all slots are in flight. Every call returns the same
 * buffer until it is sent. */
MR_MUST_USE mr_status mr_outbox_reserve(mr_outbox *out, uint8_t **out_payload, mr_err *err);
/* Keeps the reserved buffer for a later send, so that the next reserve returns another one. At most MR_OUTBOX_KEPT
 * buffers are kept at a time. */
void mr_outbox_keep(mr_outbox *out);
/* Writes the header and sends the buffer that was kept first, or the reserved buffer if none is kept, with
 * frame->payload_bytes of payload. The link fills in kind and epoch. After an error the buffer is still kept or
 * reserved. MR_E_INVALID: no buffer is kept or reserved, the payload is longer than the buffer, or its length is not
 * rows * row_bytes. */
MR_MUST_USE mr_status mr_outbox_send(mr_outbox *out, const mr_frame *frame, mr_err *err);
/* Packs a message of millrace.proto into a free buffer and sends it. *out_sent is false if all slots are in flight. No
 * buffer may be kept. */
MR_MUST_USE mr_status mr_outbox_send_message(mr_outbox *out, const ProtobufCMessage *message, bool *out_sent,
                                             mr_err *err);
/* Waits until every send has completed, the peer is gone, or the deadline has passed. */
void mr_outbox_flush(mr_outbox *out, int64_t deadline_ns);
/* True when every send has completed. */
MR_MUST_USE mr_status mr_outbox_flushed(mr_outbox *out, bool *out_flushed, mr_err *err);

#endif
