/* tests/support/channel_delay.h - wraps another channel and delays its messages: latency with jitter, a limited
 * bandwidth, and loss, which shows as a resend because the transport is reliable. An endpoint can die after a number of
 * sends. Messages of one (peer, tag) stay in order. With jitter, messages of different peers or tags can overtake each
 * other. A delayed message goes out while the sending endpoint waits, tests, or makes progress.
 * Owns:    the inner channel, and a table of requests sized at create. Nothing is allocated after create.
 * Threads: as the inner channel.
 * Errors:  the errors of the inner channel; a dead endpoint returns MR_E_PEER_LOST from every call. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_CHANNEL_DELAY_H
#define MR_TESTS_SUPPORT_CHANNEL_DELAY_H

#include "proto/channel.h"

typedef struct channel_delay_config {
    int64_t latency_ns, jitter_ns; /* each message takes latency_ns plus a random part of jitter_ns */
    double bytes_per_second;       /* to each peer; 0: no limit */
    /* The share of messages that are lost, below 1. A lost message is sent again after resend_ns, and can be lost
     * again. Later messages of the same (peer, tag) wait for the lost one. */
    double loss;
    int64_t resend_ns;
    uint64_t seed;
    int32_t
        dies_after; /* sends until this endpoint dies like a killed process: messages not yet sent are lost; 0: never */
    int32_t max_requests; /* limit of open requests of the inner channel */
} channel_delay_config;

/* Takes ownership of inner on success. On an error the caller still owns inner. */
MR_MUST_USE mr_status channel_delay_create(mr_channel *inner, const channel_delay_config *config, mr_channel **out,
                                           mr_err *err);

#endif
