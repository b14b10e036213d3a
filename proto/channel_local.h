/* proto/channel_local.h - endpoints inside one process. Bytes are copied, so that no pointer crosses an endpoint.
 * Owns:    the hub owns the mailboxes and the memory of the channels. The hub must outlive its channels.
 * Threads: the hub is thread-safe, each channel is bound to one thread.
 * A send completes when its bytes have been copied into a matching receive. The side that posts second copies, without
 * holding the lock. Cancel and destroy wait for the end of such a copy. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_CHANNEL_LOCAL_H
#define MR_PROTO_CHANNEL_LOCAL_H

#include "proto/channel.h"

typedef struct mr_local_hub mr_local_hub;

/* max_requests: most posted requests of one endpoint; a done request counts until it is tested. */
MR_MUST_USE mr_status mr_local_hub_create(int32_t n_endpoints, int32_t max_requests, mr_local_hub **out, mr_err *err);
/* All channels must be destroyed. NULL is accepted. */
void mr_local_hub_destroy(mr_local_hub *hub);

/* Opens the channel of one endpoint. An endpoint can be opened once; after destroy it stays lost. Messages sent to an
 * endpoint before it is opened wait. MR_E_INVALID: there is no such endpoint, or it was opened before. */
MR_MUST_USE mr_status mr_local_channel_open(mr_local_hub *hub, int32_t self, mr_channel **out, mr_err *err);

#endif
