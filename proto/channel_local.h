/* proto/channel_local.h - endpoints inside one process. Bytes are copied, so that no pointer crosses an endpoint.
 * Owns:    the hub owns the mailboxes and the channels' memory; it must outlive its channels.
 * Threads: the hub is thread-safe, each channel is bound to one thread.
 * A send completes once its bytes are copied into the receive that matches it, or, when none is posted yet, when one
 * is. The side that posts second copies, with no lock held; cancel and destroy wait for the end of such a copy. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_CHANNEL_LOCAL_H
#define MR_PROTO_CHANNEL_LOCAL_H

#include "proto/channel.h"

typedef struct mr_local_hub mr_local_hub;

/* n_endpoints endpoints with at most max_requests posted requests each (done ones count until they are tested). */
MR_MUST_USE mr_status mr_local_hub_create(int32_t n_endpoints, int32_t max_requests, mr_local_hub **out, mr_err *err);
/* Every channel has been destroyed. NULL is accepted. */
void mr_local_hub_destroy(mr_local_hub *hub);

/* The channel of one endpoint; each endpoint once: one that was destroyed stays lost. What is sent to an endpoint
 * before it is opened waits for it. MR_E_INVALID: no such endpoint, or it was opened before. */
MR_MUST_USE mr_status mr_local_channel_open(mr_local_hub *hub, int32_t self, mr_channel **out, mr_err *err);

#endif
