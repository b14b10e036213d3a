/* proto/channel.h - messages between the endpoints of a job: the coordinator and the stages.
 * Point-to-point, ordered for each (sender, tag), matched to receives that were posted ahead. Implementations: local,
 * mpi.
 * When:    by links (link.h), which give messages heads, checksums and slots; by nothing else in the product. Example:
 *
 *     mr_channel_post_recv(ch, peer, tag, buffer, sizeof buffer, &r, err);    // ahead of the message
 *     while (mr_channel_test(ch, r, &done, err) == MR_OK && !done.done)
 *         mr_channel_wait(ch, deadline_ns, err);                              // done.bytes is its length then
 *
 * Owns:    its own bookkeeping. Borrows: every posted buffer until its request is done or cancelled.
 * Threads: one endpoint is bound to one thread; mr_channel_wake alone may be called from anywhere.
 * Errors:  MR_E_PEER_LOST when the other side is gone (from post or from test: implementations differ), MR_E_PROTOCOL
 *          for a message longer than the posted buffer (that receive alone is affected, the send completes),
 *          MR_E_NO_MEMORY when all request slots are in use (a bound set at create), MR_E_INVALID for a peer or a tag
 *          that does not exist. A post that fails leaves nothing posted.
 * Nothing is allocated after create. An endpoint may send to itself. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_CHANNEL_H
#define MR_PROTO_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/base/status.h"

typedef struct mr_channel mr_channel;

enum {
    MR_CHANNEL_MAX_TAG = 32767,  /* the largest that every MPI library has to take */
    MR_CHANNEL_NAME_BYTES = 112, /* of a peer's name */
};

/* A handle to a posted send or receive; 0 is none. Invalid once test has reported it done or failed, or cancel has
 * returned. */
typedef uint64_t mr_channel_request;

typedef struct mr_completion {
    bool done;
    size_t bytes; /* of the message; 0 until it is done */
} mr_completion;

typedef struct mr_channel_ops {
    const char *name;
    mr_status (*post_send)(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                           mr_channel_request *out, mr_err *err);
    mr_status (*post_recv)(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                           mr_channel_request *out, mr_err *err);
    mr_status (*test)(mr_channel *ch, mr_channel_request request, mr_completion *out, mr_err *err);
    bool (*cancel)(mr_channel *ch, mr_channel_request request);
    mr_status (*wait)(mr_channel *ch, int64_t deadline_ns, mr_err *err);
    void (*progress)(mr_channel *ch); /* NULL: nothing to do */
    void (*wake)(mr_channel *ch);
    /* NULL: peers have numbers only. */
    void (*peer_name)(const mr_channel *ch, int32_t peer, char out[MR_CHANNEL_NAME_BYTES]);
    void (*destroy)(mr_channel *ch);
} mr_channel_ops;

/* Every implementation begins with this. */
struct mr_channel {
    const mr_channel_ops *ops;
    int32_t self;    /* this endpoint */
    int32_t n_peers; /* endpoints are 0 .. n_peers - 1 */
};

/* Sends data[bytes] to peer; data stays valid until the request is done. Never blocks. */
MR_MUST_USE static inline mr_status mr_channel_post_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data,
                                                         size_t bytes, mr_channel_request *out, mr_err *err) {
    return ch->ops->post_send(ch, peer, tag, data, bytes, out, err);
}
/* Accepts the next message of (peer, tag) into buffer[capacity]. */
MR_MUST_USE static inline mr_status mr_channel_post_recv(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer,
                                                         size_t capacity, mr_channel_request *out, mr_err *err) {
    return ch->ops->post_recv(ch, peer, tag, buffer, capacity, out, err);
}
/* Says whether the request is done, without blocking. On an error status the request is finished too, and *out is not
 * written. */
MR_MUST_USE static inline mr_status mr_channel_test(mr_channel *ch, mr_channel_request request, mr_completion *out,
                                                    mr_err *err) {
    return ch->ops->test(ch, request, out, err);
}
/* Cancels a request. The request may be 0, or one that test has reported as failed. If a receive has already matched a
 * message, that message is lost. If the request is a send, the message may still have been delivered.
 * True: the caller may use the buffer again. False: the implementation cannot cancel the request (MPI: large sends, and
 * large receives that have begun to arrive). The message goes on, and the buffer is in use until the process ends. */
static inline bool mr_channel_cancel(mr_channel *ch, mr_channel_request request) {
    return request ? ch->ops->cancel(ch, request) : true;
}
/* Returns when a request may have completed since the last wait, after a wake, at the deadline (MR_OK too), or for
 * nothing: the caller tests its requests and waits again. Deadlines are those of mr_clock_now_ns(). */
MR_MUST_USE static inline mr_status mr_channel_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    return ch->ops->wait(ch, deadline_ns, err);
}
/* Moves messages along during other work, without blocking: now and then, from the endpoint's own thread. */
static inline void mr_channel_progress(mr_channel *ch) {
    if (ch->ops->progress)
        ch->ops->progress(ch);
}
/* "rank 2 on node7", "endpoint 2"; returns out. */
static inline const char *mr_channel_peer_name(const mr_channel *ch, int32_t peer, char out[MR_CHANNEL_NAME_BYTES]) {
    if (ch->ops->peer_name)
        ch->ops->peer_name(ch, peer, out);
    else
        snprintf(out, MR_CHANNEL_NAME_BYTES, "endpoint %d", (int)peer);
    return out;
}
/* Makes a current or the next wait of this endpoint return. Thread-safe. */
static inline void mr_channel_wake(mr_channel *ch) {
    ch->ops->wake(ch);
}
/* Cancels what is posted. The others' requests to and from this endpoint become MR_E_PEER_LOST. NULL is accepted. */
static inline void mr_channel_destroy(mr_channel *ch) {
    if (ch)
        ch->ops->destroy(ch);
}

#endif
