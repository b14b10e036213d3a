/* proto/carrier.h - what moves the payloads of one device link (device_link.h) between the memories of two devices.
 * There is one carrier at each end, and it moves payloads in one direction. Implementations: NCCL (nccl/nccl_carrier.h)
 * and the channel itself (carrier_channel.h).
 * Life: the sender makes an id, which its link brings to the receiver. Both connect, and poll until they are connected.
 * Then both start the same transfers in the same order. A transfer of the receiver is started only when the sender's
 * is launched, so that no device waits for a peer that has died before.
 * Owns:    its connection. Borrows: the device, and the memory of the transfers.
 * Threads: bound to the step thread.
 * Errors:  MR_E_UNSUPPORTED, MR_E_IO: the connection failed. After an error only destroy may be called. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_CARRIER_H
#define MR_PROTO_CARRIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { MR_CARRIER_ID_BYTES = 128, MR_CARRIER_TRANSFERS = 16 /* not done yet, at most */ };

typedef struct mr_carrier mr_carrier;

/* How many transfers since the connection stand in the device's queue, and how many are done. */
typedef struct mr_carried {
    uint64_t n_launched, n_done;
} mr_carried;

typedef struct mr_carrier_ops {
    mr_status (*make_id)(mr_carrier *c, uint8_t out[MR_CARRIER_ID_BYTES], mr_err *err);
    mr_status (*connect)(mr_carrier *c, const uint8_t id[MR_CARRIER_ID_BYTES], mr_err *err);
    mr_status (*poll_connect)(mr_carrier *c, bool *out_connected, mr_err *err);
    /* Sends or receives bytes at an address of the device. They must not change until the transfer is done. */
    mr_status (*start)(mr_carrier *c, void *address, size_t bytes, mr_err *err);
    mr_status (*poll)(mr_carrier *c, mr_carried *out, mr_err *err);
    /* Gives up transfers that are not done. False: something may still use their memory, until the process ends. */
    bool (*destroy)(mr_carrier *c);
} mr_carrier_ops;

/* Every implementation begins with this. */
struct mr_carrier {
    const mr_carrier_ops *ops;
};

#endif
