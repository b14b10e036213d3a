/* proto/nccl/nccl_carrier.h - a carrier that moves payloads by NCCL: a communicator of two devices, in which the sender
 * is number 0 and the receiver is number 1. Nothing here waits for the peer: communicators are non-blocking, and the
 * queue of the device is asked by marks.
 * End: a communicator is always aborted, never destroyed, because only this does not wait for the peer. A helper thread
 * does it. Where it does not return in NCCL_ABORT_NS, the process ends with a message: the device would work on for
 * ever.
 * Owns:    its communicator. Borrows: the device's functions and the library.
 * Threads: bound to the step thread.
 * Errors:  MR_E_IO: a call of NCCL failed; the text names it. MR_E_UNSUPPORTED: there is no library. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_NCCL_NCCL_CARRIER_H
#define MR_PROTO_NCCL_NCCL_CARRIER_H

#include "engine/base/clock.h"
#include "proto/carrier.h"

#define MR_NCCL_ABORT_NS (2 * MR_NS_PER_S)

/* What NCCL needs of the device: mr_backend_link_ops, whose first argument ctx is. */
typedef struct mr_nccl_device {
    void *ctx;
    mr_status (*enter)(void *ctx, mr_err *err);
    mr_status (*queue)(void *ctx, void **out, mr_err *err);
    mr_status (*mark)(void *ctx, uint64_t *out, mr_err *err);
    mr_status (*reached)(void *ctx, uint64_t mark, bool *out, mr_err *err);
} mr_nccl_device;

/* The version of the library. MR_E_UNSUPPORTED: there is none. */
MR_MUST_USE mr_status mr_nccl_version(uint32_t *out, mr_err *err);
MR_MUST_USE mr_status mr_nccl_carrier_create(const mr_nccl_device *device, bool is_sender, mr_carrier **out,
                                             mr_err *err);

#endif
