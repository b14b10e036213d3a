/* proto/lifeline.h - tells a process at once that another process of its job has died. Every rank has one plain TCP
 * connection to rank 0. At both ends a thread of the lifeline watches the connection. The kernel closes the connection
 * when a process dies, whatever the process was doing. Both ends send a byte every 500 ms. If a host or its network
 * fails, no byte is acknowledged any more, and after 1 s the kernel ends the connection (TCP_USER_TIMEOUT). If a
 * process is stopped, its kernel goes on acknowledging, and the byte of the process is missing for 5 s. Time in which
 * the watching process itself was stopped does not count. A rank may also say that it hangs. Linux frees the memory of
 * a killed process before it closes its files: measured 30 ms for a GB of 4 KiB pages and 2 ms for a GB of huge pages
 * until the death shows. When a peer hangs or is silent for too long, rank 0 sends it a goodbye, so that a rank that
 * was only stopped ends quietly when it goes on.
 * Owns:    its sockets (on rank 0 one for each other rank) and its thread. If a process forks without exec, the child
 *          holds the sockets, too: the death of the process shows only when the child has ended.
 * Threads: listen, connect and close are for one thread; any thread may call mr_lifeline_address.
 * Errors:  MR_E_IO: the system refuses a socket or an eventfd. MR_E_NO_MEMORY. MR_E_INVALID: a rank or a number of
 *          ranks outside MR_MAX_STAGES. Other errors are named at the function. Bytes from the port are checked: a
 *          client that does not prove to know the launch secret is disconnected, which is logged once, and nothing else
 *          happens. Without a secret, the token in the address takes its place: it keeps other programs and wrong hosts
 *          out, but does not protect against a person who reads the network. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_LIFELINE_H
#define MR_PROTO_LIFELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "proto/secret.h"

enum { MR_LIFELINE_ADDRESS_BYTES = 512 }; /* with the terminating zero */

typedef struct mr_lifeline mr_lifeline;

/* Called once for each peer that is lost or has said goodbye, on the thread of the lifeline, perhaps before listen or
 * connect has returned. rank: the peer; 0 on all ranks but rank 0. why: a text such as "its connection closed" or "no
 * sign of life for 5 s", valid during the call; NULL: the peer said goodbye. silent_ns: since its last sign of life,
 * which a peer gives every 500 ms. The function must not close the lifeline. */
typedef void mr_lifeline_lost(void *ctx, int32_t rank, const char *why, int64_t silent_ns);

/* Rank 0: listens on an ephemeral port of all interfaces (IPv6 and IPv4, or IPv4 only), until every rank from 1 to
 * n_ranks - 1 has connected. A rank may connect once. secret: of the launch, read by this call only. */
MR_MUST_USE mr_status mr_lifeline_listen(int32_t n_ranks, const mr_secret *secret, mr_lifeline_lost *lost, void *ctx,
                                         mr_lifeline **out, mr_err *err);
/* Rank 0: one line that the other ranks need to connect: a random token, and host:port for each address of the
 * interfaces that are up, loopback addresses last, without link-local addresses. Valid until close; "" on the other
 * ranks. */
const char *mr_lifeline_address(const mr_lifeline *l);
/* Rank 0, from any thread: the number of ranks that have not connected yet, and the first of them. 0 on the other
 * ranks. */
int32_t mr_lifeline_n_missing(const mr_lifeline *l, int32_t *out_first);

typedef struct mr_lifeline_wish {
    int32_t self_rank;
    const mr_secret *secret; /* of the launch, read by the call only */
    mr_lifeline_lost *lost;
    /* Called once in a beat, on the thread of the lifeline. true: rank 0 is told that this process hangs, and takes it
     * for lost. NULL: this process does not hang while the thread of the lifeline runs. */
    bool (*hangs)(void *ctx);
    void *ctx;
    /* Until when to try again where the connection ends before the answer to the proof: rank 0 has another secret, is
     * starting again, or is behind a proxy that closes. A time of mr_clock_now_ns(). 0: do not try again. */
    int64_t refused_until_ns;
} mr_lifeline_wish;

/* The other ranks: tries all addresses at once. The first peer that proves to know the secret is rank 0. Another
 * program behind the same address cannot prove it. deadline_ns: of mr_clock_now_ns(), for the whole call.
 * MR_E_PROTOCOL: address is malformed. MR_E_IO: no address can be reached.
 * MR_E_UNAVAILABLE: the connection ended before rank 0 answered the proof, to the last; rank 0 probably has another
 * secret.
 * MR_E_TIMEOUT: the deadline has passed.
 * MR_E_PEER_LOST: the deadline has passed, and a peer that took the hello has been silent for a second. */
MR_MUST_USE mr_status mr_lifeline_connect(const mr_lifeline_wish *wish, const char *address, int64_t deadline_ns,
                                          mr_lifeline **out, mr_err *err);
/* A secret of this job alone, equal at all ranks: two jobs with one launch secret have different ones. Not set if the
 * launch has no secret. */
mr_secret mr_lifeline_secret(const mr_lifeline *l);

/* Sends a goodbye, so that the peers do not take the end of the connection for a death. Waits until the peers have
 * closed their ends, half a second at most. lost is not called after this returns. NULL is accepted. */
void mr_lifeline_close(mr_lifeline *l);

#endif
