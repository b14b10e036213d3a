/* proto/device_link_internal.h - an end of a hop: device_link.c moves rows, device_link_setup.c agrees with the peer on
 * the way. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_DEVICE_LINK_INTERNAL_H
#define MR_PROTO_DEVICE_LINK_INTERNAL_H

#include "engine/base/arena.h"
#include "proto/device_link.h"

/* What an end waits for, or does next. The sender begins with OFFER, the receiver with AWAIT_OFFER. */
typedef enum setup_state {
    SETUP_OFFER,
    SETUP_AWAIT_OFFER,
    SETUP_AWAIT_ANSWER,
    SETUP_ANSWER,
    SETUP_CONNECT,
    SETUP_TRY, /* a first transfer, which makes NCCL connect the two devices */
    SETUP_RESULT,
    SETUP_AWAIT_RESULT,
    SETUP_OPEN,
} setup_state;

struct mr_device_link {
    mr_device_link_desc desc;
    mr_link_device device; /* carrier NULL: this end has none, or it was given up */
    mr_err why;            /* why there is another way than that of desc; status MR_OK: there is not */
    mr_way way;            /* of an open link */
    bool is_leaked;        /* the memory of the device may be used until the process ends */

    /* device_link_setup.c */
    setup_state state;
    mr_outbox *setup_out;
    mr_inbox *setup_in;
    mr_arena *arena;
    uint8_t id[MR_CARRIER_ID_BYTES];
    bool has_result;     /* the peer's */
    int64_t deadline_ns; /* of SETUP_CONNECT and SETUP_TRY */

    /* Frames, and with MR_WAY_HOST also rows. */
    mr_outbox *out;
    mr_inbox *in;

    /* With a carrier: steps are counted, and step i is in slot i % MR_DEVICE_LINK_SLOTS. */
    uint64_t n_first;                     /* transfers of the carrier before the first step */
    uint64_t n_kept, n_started, n_framed; /* of the sender: kept, with a transfer, with a frame sent */
    uint64_t n_taken, n_done, n_released; /* n_taken: frames of the receiver. n_done: transfers of either end */
    mr_frame frames[MR_DEVICE_LINK_SLOTS];
    int64_t taken_ns; /* when the oldest transfer of the receiver that is not done was started, or became the oldest */
};

/* Creates the links of the agreement and begins with it. */
MR_MUST_USE mr_status device_link_begin_setup(mr_device_link *l, mr_err *err);
/* Goes on with it. *did is set if something has happened. */
MR_MUST_USE mr_status device_link_poll_setup(mr_device_link *l, bool *did, mr_err *err);
/* Opens the links for frames. */
MR_MUST_USE mr_status device_link_open(mr_device_link *l, mr_way way, mr_err *err);
void device_link_drop_carrier(mr_device_link *l);
static inline size_t device_link_slot(const mr_device_link *l, uint64_t step) {
    return (size_t)(step % MR_DEVICE_LINK_SLOTS) * l->device.slot_bytes;
}

#endif
