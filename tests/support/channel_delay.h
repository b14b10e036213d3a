/* tests/support/channel_delay.h - a channel whose messages take time, around any other: latency with jitter, a
 * bandwidth, loss as a reliable transport shows it, and an end after a while. Messages of one (peer, tag) stay in
 * order; those of others overtake each other where jitter lets them. Delays are served while the sending endpoint
 * waits, tests, or makes progress.
 * Owns:    the inner channel, and a table of requests sized at create. Nothing is allocated after that.
 * Threads: as the inner channel.
 * Errors:  those of the inner channel; MR_E_PEER_LOST of everything at an endpoint that has died. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_CHANNEL_DELAY_H
#define MR_TESTS_SUPPORT_CHANNEL_DELAY_H

#include "proto/channel.h"

typedef struct channel_delay_config {
    int64_t latency_ns, jitter_ns; /* each message takes latency_ns and a random part of jitter_ns */
    double bytes_per_second;       /* to each peer; 0: no limit */
    /* The part of messages that is lost, below 1, and is sent again after resend_ns each time; what follows on the same
     * (peer, tag) waits for it. */
    double loss;
    int64_t resend_ns;
    uint64_t seed;
    int32_t
        dies_after; /* sends: then this endpoint is gone, with what it still holds, as a process that dies; 0: never */
    int32_t max_requests; /* that the inner channel takes */
} channel_delay_config;

/* On an error inner is the caller's still. */
MR_MUST_USE mr_status channel_delay_create(mr_channel *inner, const channel_delay_config *config, mr_channel **out,
                                           mr_err *err);

#endif
