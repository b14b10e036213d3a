/* tests/support/channel_fault.h - a channel around another one that fails when the test says so: its waits with any
 * status, or its next message with a wrong byte.
 * Owns:    the inner channel. Threads: as the inner channel; is_on is set by any.
 * Errors:  those of the inner channel, and the fault's. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_CHANNEL_FAULT_H
#define MR_TESTS_SUPPORT_CHANNEL_FAULT_H

#include <stdatomic.h>

#include "proto/channel.h"

typedef struct channel_fault {
    int32_t endpoint; /* whose channel it is */
    mr_status status; /* of its waits, with this text; MR_OK: its next message to the last endpoint has a wrong byte */
    const char *text;
    atomic_bool is_on;
} channel_fault;

/* As mr_local_cluster_config.wrap; ctx is the fault, which is borrowed. */
MR_MUST_USE mr_status channel_fault_wrap(void *ctx, mr_channel **channel, mr_err *err);

#endif
