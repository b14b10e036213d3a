/* worker/link_device.h - what the end of a hop takes of its device: slots in its memory, and a carrier between the
 * slots of the two ends. The stage takes it for its activations, and the lobby to measure the hop.
 * Owns:    nothing; the slots belong to the caller, until mr_link_device_give_back. Borrows: the backend.
 * Threads: bound to the thread of the channel.
 * Errors:  MR_E_UNSUPPORTED: there is no such carrier here. MR_E_NO_MEMORY: the device has too little. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LINK_DEVICE_H
#define MR_WORKER_LINK_DEVICE_H

#include "backends/backend.h"
#include "proto/carrier_channel.h"
#include "proto/device_link.h"

/* Bytes of the slots of a hop whose steps have up to payload_bytes. */
size_t mr_link_device_bytes(size_t payload_bytes);
/* Bytes that the slots of both hops of a stage take at most, for steps of max_rows rows of n_embd values. 0: the device
 * has no links. */
size_t mr_link_device_stage_bytes(const mr_backend *be, int32_t max_rows, int32_t n_embd);
/* For a way other than MR_WAY_HOST. After an error *out_slots is NULL or to be given back. */
MR_MUST_USE mr_status mr_link_device_take(mr_backend *be, const mr_channel_carrier_desc *hop, mr_way way,
                                          size_t payload_bytes, mr_buffer **out_slots, mr_link_device *out,
                                          mr_err *err);
/* Frees the slots when the device has come to rest. is_free: as mr_device_link_destroy says. Memory that may still be
 * in use stays until the backend ends. slots may be NULL. */
void mr_link_device_give_back(mr_backend *be, mr_way way, mr_buffer *slots, bool is_free);

#endif
