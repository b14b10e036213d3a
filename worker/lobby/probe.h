/* worker/lobby/probe.h - how fast a link between two ranks is, before there is a plan: small messages back and forth,
 * then large ones, in frames like those of activations. Both ranks call it at about the same time; each measures its
 * own direction while the other one answers.
 * Owns:    its links, of epoch 0. Threads: that of the channel.
 * Errors:  MR_E_TIMEOUT: the peer does not answer; MR_E_CANCELLED when it is told to end; those of the links. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_PROBE_H
#define MR_WORKER_LOBBY_PROBE_H

#include <stdbool.h>

#include "proto/channel.h"

typedef struct mr_probe_config {
    mr_channel *channel;
    int32_t peer;
    bool answers_first;
    bool (*told_to_end)(void *ctx); /* may be NULL */
    void *ctx;
} mr_probe_config;

/* out_latency_s: of a small message, one way. out_second_bytes: bytes per second of large ones. Under a second, and a
 * few over a slow link. */
MR_MUST_USE mr_status mr_probe_link(const mr_probe_config *config, double *out_latency_s, double *out_second_bytes,
                                    mr_err *err);

#endif
