/* tests/support/channel_kill.h - wraps another channel whose endpoint dies at a chosen message: the message is not
 * sent, the inner channel is destroyed, so that the other endpoints lose this one, and every later call fails.
 * Owns:    the inner channel.
 * Threads: as the inner channel; any thread may read is_dead and n_sent.
 * Errors:  MR_E_PEER_LOST once it is dead. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_CHANNEL_KILL_H
#define MR_TESTS_SUPPORT_CHANNEL_KILL_H

#include <stdatomic.h>

#include "proto/channel.h"

typedef struct channel_kill {
    atomic_long at; /* the number of the message, from 1, with which the endpoint dies; 0: it lives */
    atomic_long n_sent;
    atomic_bool is_dead;
} channel_kill;

/* Replaces *channel. kill is borrowed. */
MR_MUST_USE mr_status channel_kill_wrap(channel_kill *kill, mr_channel **channel, mr_err *err);

#endif
