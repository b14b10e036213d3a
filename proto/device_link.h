/* proto/device_link.h - one end of the hop on which activations go from a stage to the next one. The stage does not
 * know the way that they take (proto/ways.h): through the memory of the hosts, or from device to device by a carrier
 * (carrier.h). Frames go over the channel in every case. With a carrier they have no payload, and the sender sends the
 * frame when the transfer of its payload stands in the queue of its device.
 * Life: create; poll until mr_device_link_is_open. The ends agree on a way meanwhile: where a carrier cannot be had or
 * does not connect, both take the way through the hosts, or fail if `must` is set. Then, for each step,
 *
 *     mr_device_link_reserve(out, &rows, &is_free, err);    // the sender: where the step writes its rows
 *     mr_device_link_keep(out);
 *     mr_device_link_send(out, &frame, err);                // when they are written
 *     mr_device_link_peek(in, &frame, &rows, &is_here, err);    // the receiver: the oldest rows
 *     mr_device_link_release(in, err);                          // when they are read
 *
 * and mr_device_link_poll now and then.
 * Owns:    its links over the channel, and its carrier. Borrows: the channel, and the memory of the device.
 * Threads: bound to the thread of the channel.
 * Errors:  those of proto/link.h. MR_E_UNSUPPORTED: the plan wants a way that cannot be had. MR_E_TIMEOUT: a transfer
 *          does not end. After create nothing is allocated but by carriers that connect. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_DEVICE_LINK_H
#define MR_PROTO_DEVICE_LINK_H

#include "proto/carrier.h"
#include "proto/link.h"
#include "proto/ways.h"

enum { MR_DEVICE_LINK_SLOTS = 4, MR_DEVICE_UUID_WORDS = 2 };

/* The device at this end. */
typedef struct mr_link_device {
    uint8_t *address;                    /* of MR_DEVICE_LINK_SLOTS slots in the memory of the device */
    size_t slot_bytes;                   /* at least payload_bytes */
    uint64_t uuid[MR_DEVICE_UUID_WORDS]; /* NCCL connects two devices, not a device with itself */
    uint32_t version;                    /* of the library that carries; both ends have the same one */
    mr_carrier *carrier;                 /* owned by the link from its create on */
} mr_link_device;

typedef struct mr_device_link_desc {
    mr_channel *channel;
    int32_t peer;
    uint32_t epoch;
    bool is_sender;
    int32_t n_slots;      /* steps between the two stages at most, through the hosts */
    size_t payload_bytes; /* of the largest step */
    mr_way way;           /* that the plan gives the hop */
    bool must;            /* no other way will do */
    /* With a way other than MR_WAY_HOST; NULL: why says why this end has none. */
    const mr_link_device *device;
    const mr_err *why;
} mr_device_link_desc;

typedef struct mr_device_link mr_device_link;

/* After an error, too, the carrier belongs to the link and is gone. */
MR_MUST_USE mr_status mr_device_link_create(const mr_device_link_desc *desc, mr_device_link **out, mr_err *err);
/* Gives up transfers that are under way, so that the device comes to rest. Nothing but destroy may follow. */
void mr_device_link_stop(mr_device_link *l);
/* False: the memory of the device is still in use, until the process ends. NULL is accepted. */
bool mr_device_link_destroy(mr_device_link *l);
/* Goes on with the agreement and with transfers, without waiting. *did is set if something has happened. MR_E_PEER_LOST
 * comes only where the peer is still needed. */
MR_MUST_USE mr_status mr_device_link_poll(mr_device_link *l, bool *did, mr_err *err);
/* The ends have agreed on a way. */
bool mr_device_link_is_open(const mr_device_link *l);
/* Something goes on that a wait on the channel does not notice. */
bool mr_device_link_is_busy(const mr_device_link *l);
mr_way mr_device_link_way(const mr_device_link *l);
/* Why the link has another way than the plan says; "": it has not. */
const char *mr_device_link_why(const mr_device_link *l);
/* The memory on the host in which rows lie, as mr_inbox_memory; NULL: they lie on the device. */
void *mr_device_link_memory(mr_device_link *l, size_t *out_bytes);

/* Where the rows of a step lie. */
typedef struct mr_link_rows {
    uint8_t *host;        /* 64-byte aligned; NULL: on the device */
    size_t device_offset; /* in the memory of the device */
} mr_link_rows;

/* As mr_outbox_reserve, keep and send. */
MR_MUST_USE mr_status mr_device_link_reserve(mr_device_link *l, mr_link_rows *out, bool *out_free, mr_err *err);
void mr_device_link_keep(mr_device_link *l);
MR_MUST_USE mr_status mr_device_link_send(mr_device_link *l, const mr_frame *frame, mr_err *err);
/* As mr_inbox_peek and release. */
MR_MUST_USE mr_status mr_device_link_peek(mr_device_link *l, mr_frame *out, mr_link_rows *out_rows, bool *out_here,
                                          mr_err *err);
MR_MUST_USE mr_status mr_device_link_release(mr_device_link *l, mr_err *err);

#endif
