/* worker/lobby/probe_device.h - measures a way of activations between the devices of two ranks, before the plan: rows
 * go from the memory of one device to that of the other over a device link (proto/device_link.h), as in a run, with the
 * copies between the device and its slots or the memory of the host. Both ranks call mr_probe_device at about the same
 * time, one as the sender. The receiver answers each payload by a small message over the channel.
 * Owns:    its links, slots and buffers. Borrows: the device. Threads: that of the channel.
 * Errors:  MR_E_UNSUPPORTED: the way cannot be had. MR_E_TIMEOUT: it does not answer. MR_E_CANCELLED: told to end. The
 *          errors of links, carriers and devices. When one end fails, it tells the other one. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_PROBE_DEVICE_H
#define MR_WORKER_LOBBY_PROBE_DEVICE_H

#include <stdbool.h>

#include "backends/backend.h"
#include "proto/channel.h"
#include "proto/ways.h"

typedef struct mr_probe_device_config {
    mr_channel *channel;
    int32_t peer;
    uint32_t epoch; /* of the links; that of no other measurement */
    bool is_sender;
    mr_way way;
    mr_backend *device;             /* with ops->link */
    bool (*told_to_end)(void *ctx); /* may be NULL */
    void *ctx;
} mr_probe_device_config;

/* The sender writes the time of a small payload, one way, and the bytes per second of large ones. The receiver writes
 * nothing. Takes less than a second, but for NCCL, which needs some seconds to connect. */
MR_MUST_USE mr_status mr_probe_device(const mr_probe_device_config *config, double *out_latency_s,
                                      double *out_second_bytes, mr_err *err);

#endif
