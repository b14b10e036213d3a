/* tests/support/channel_fault.h - wraps another channel and fails when the test says so: either every wait returns a
 * chosen status, or the next message is sent with a wrong byte.
 * Owns:    the inner channel.
 * Threads: as the inner channel; any thread may set is_on.
 * Errors:  the errors of the inner channel, and the status of the fault. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_CHANNEL_FAULT_H
#define MR_TESTS_SUPPORT_CHANNEL_FAULT_H

#include <stdatomic.h>

#include "proto/channel.h"

typedef struct channel_fault {
    int32_t endpoint; /* the endpoint whose channel fails */
    mr_status status; /* of every wait; MR_OK: the next message to the last endpoint has a wrong byte */
    const char *text;
    atomic_bool is_on;
} channel_fault;

/* As mr_local_cluster_config.wrap; ctx is the fault, which is borrowed. */
MR_MUST_USE mr_status channel_fault_wrap(void *ctx, mr_channel **channel, mr_err *err);

#endif
