/* tests/simulation/net.h - the network of a world: channels between its actors that behave as those over MPI. Small
 * messages are sent at once, large ones when their receive is posted; every message is late by a drawn time, and those
 * of one (sender, tag) stay in order. Endpoints are lost, cut off, and send wrong bytes when the caller says so.
 * Owns:    messages under way, and the channels.
 * Threads: one thread.
 * Errors:  those of proto/channel.h. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SIMULATION_NET_H
#define MR_TESTS_SIMULATION_NET_H

#include "proto/channel.h"
#include "tests/simulation/world.h"

typedef struct net net;

typedef struct net_config {
    world *world;
    uint64_t seed;
    bool is_calm;            /* all messages take the same time, and none is held until its receive is posted */
    bool ranks_hear;         /* a rank hears of the loss of other ranks; over MPI only the coordinator does */
    const mr_secret *secret; /* of all endpoints; NULL: none */
    bool sends_may_stick;    /* a large send that nobody receives cannot be cancelled, as with Open MPI 4.1 */
    /* Called for each message, before it is sent. May call the functions below. */
    void (*on_send)(void *ctx, int32_t from, int32_t to, uint32_t tag);
    void *ctx;
} net_config;

net *net_create(const net_config *config);
/* All channels are destroyed. */
void net_destroy(net *n);
mr_channel *net_open(net *n, int32_t endpoint);
/* Fills the functions of w->network for messages and news. */
void net_attach(net *n);

/* The endpoint ends: its calls fail, what it sent may arrive in part, and others hear of it after a drawn time. */
void net_kill(net *n, int32_t endpoint);
/* No message to or from the endpoint arrives any more. Both sides hear of it later. */
void net_cut(net *n, int32_t endpoint);
/* The next message from one endpoint to another that is not of the lobby arrives with a wrong byte. */
void net_corrupt_next(net *n, int32_t from, int32_t to);

/* Behind the next message from one endpoint to another, of any link or of the lobby, comes another one: with a wrong
 * byte, or the same once more. */
void net_forge_next(net *n, int32_t from, int32_t to, bool of_lobby, bool is_wrong);

/* The endpoint is killed or cut off. */
bool net_is_gone(const net *n, int32_t endpoint);
/* Whether the coordinator's lifeline has told of the loss of a rank. */
bool net_lifeline_has_ended(const net *n, int32_t rank);
typedef struct net_counts {
    int32_t most_requests; /* of one endpoint at any time */
    int32_t most_waiting;  /* messages of one endpoint without a receive, at any time */
    int32_t n_stuck;       /* sends that could not be cancelled */
} net_counts;
net_counts net_get_counts(const net *n);

#endif
