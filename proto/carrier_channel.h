/* proto/carrier_channel.h - a carrier that hands the addresses of a device to the channel, which takes them
 * (mr_channel.takes_device_memory). Payloads have a tag of their own beside the frames.
 * Owns:    its posted requests. Borrows: the channel.
 * Threads: bound to the thread of the channel.
 * Errors:  those of the channel. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_CARRIER_CHANNEL_H
#define MR_PROTO_CARRIER_CHANNEL_H

#include "proto/carrier.h"
#include "proto/channel.h"

typedef struct mr_channel_carrier_desc {
    mr_channel *channel;
    int32_t peer;
    uint32_t epoch;
    bool is_sender;
} mr_channel_carrier_desc;

MR_MUST_USE mr_status mr_channel_carrier_create(const mr_channel_carrier_desc *desc, mr_carrier **out, mr_err *err);

#endif
