/* worker/lobby/probe.h - measures latency and bandwidth of the link between two ranks, before the plan. Small messages
 * go back and forth, then large messages, in frames like those of activations. Both ranks call mr_probe_link at about
 * the same time. Each rank measures its own direction while the other rank answers.
 * Owns:    its links, of epoch 0. Threads: that of the channel.
 * Errors:  MR_E_TIMEOUT: the peer does not answer; MR_E_CANCELLED: told to end; those of the links. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_PROBE_H
#define MR_WORKER_LOBBY_PROBE_H

#include <stdbool.h>

#include "proto/channel.h"

typedef struct mr_probe_config {
    mr_channel *channel;
    int32_t peer;
    bool answers_first;             /* exactly one of the two ranks answers first */
    bool (*told_to_end)(void *ctx); /* may be NULL */
    void *ctx;
} mr_probe_config;

/* out_latency_s: time of a small message, one way. out_second_bytes: bytes per second of large messages. Takes less
 * than a second, over a slow link a few seconds. */
MR_MUST_USE mr_status mr_probe_link(const mr_probe_config *config, double *out_latency_s, double *out_second_bytes,
                                    mr_err *err);

#endif
