/* proto/lifeline.h - tells a process at once that another process of its job has died.
 * One plain TCP connection from every rank to rank 0, watched by a thread of its own at both ends. The kernel closes
 * it when a process dies, whatever that process was doing; where a host or its network vanishes, a byte that should
 * come every 500 ms is missing for 5 s. Time in which the watching process itself was stopped does not count.
 * Linux frees the memory of a killed process before it closes its files: measured 30 ms for a GB of 4 KiB pages and
 * 2 ms for a GB of huge pages until the death shows.
 * Rank 0 says goodbye to a rank that it gives up: one that was only stopped leaves quietly when it wakes.
 * Owns:    its sockets (at rank 0 one for each other rank) and its thread. A process that forks and does not exec lends
 *          its sockets to the child: its death shows when the child has ended too.
 * Threads: create and close are for one thread; mr_lifeline_address may be called from any.
 * Errors:  MR_E_IO when the system refuses a socket or an eventfd, MR_E_NO_MEMORY, MR_E_INVALID for a rank or a
 *          number of ranks outside MR_MAX_STAGES; others are named at the function.
 * What anybody may send to the port is checked: whoever does not know the token is dropped, and nothing else happens.
 * The token keeps strangers and wrong hosts out; it does not protect against somebody who reads the network. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_LIFELINE_H
#define MR_PROTO_LIFELINE_H

#include <stdint.h>

#include "engine/base/status.h"

enum { MR_LIFELINE_ADDRESS_BYTES = 512 }; /* its end included */

typedef struct mr_lifeline mr_lifeline;

/* A peer is lost, or has said goodbye: called once for each, on the lifeline's thread, perhaps before listen or connect
 * has returned. rank is 0 at the other ranks. why is valid during the call: "its connection closed", "no sign of life
 * for 5 s"; NULL after a goodbye. It may not close the lifeline. */
typedef void mr_lifeline_lost(void *ctx, int32_t rank, const char *why);

/* Rank 0: takes connections on an ephemeral port of all interfaces (IPv6 and IPv4, or IPv4 where there is no other),
 * until every rank of 1 to n_ranks - 1 has come. A rank may come once. */
MR_MUST_USE mr_status mr_lifeline_listen(int32_t n_ranks, mr_lifeline_lost *lost, void *ctx, mr_lifeline **out,
                                         mr_err *err);
/* Rank 0: what the others need to connect, one line: a random token, and host:port for the addresses of interfaces
 * that are up, loopback last, link-local ones left out. Valid until close; "" at the other ranks. */
const char *mr_lifeline_address(const mr_lifeline *l);
/* Rank 0, from any thread: how many ranks have not come yet, and the first of them; 0 at the other ranks. */
int32_t mr_lifeline_n_missing(const mr_lifeline *l, int32_t *out_first);

/* The other ranks: tries all addresses at once; the first that proves to know the token counts, so that another program
 * behind the same address never does. deadline_ns: of mr_clock_now_ns(), for all of it.
 * MR_E_PROTOCOL: address is malformed. MR_E_IO: no address can be reached. MR_E_TIMEOUT: the deadline has passed.
 * MR_E_PEER_LOST: likewise, and whoever took the hello at one of them has been silent for a second. */
MR_MUST_USE mr_status mr_lifeline_connect(const char *address, int32_t self_rank, int64_t deadline_ns,
                                          mr_lifeline_lost *lost, void *ctx, mr_lifeline **out, mr_err *err);

/* Says goodbye, so that the peers take nothing that follows for a death, and waits until they have closed their ends,
 * half a second at most. lost is not called once it has returned. NULL is accepted. */
void mr_lifeline_close(mr_lifeline *l);

#endif
