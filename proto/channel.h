/* proto/channel.h - messages between the endpoints of a job: the coordinator and the stages.
 * Messages are point-to-point, arrive in order for each (sender, tag), and are matched to receives that were posted
 * ahead. Implementations: local, mpi.
 * When:    only links (link.h) use channels; a link adds headers, checksums and slots. Example:
 *
 *     mr_channel_post_recv(ch, peer, tag, buffer, sizeof buffer, &r, err);    // ahead of the message
 *     while (mr_channel_test(ch, r, &done, err) == MR_OK && !done.done)
 *         mr_channel_wait(ch, deadline_ns, err);                              // done.bytes is its length then
 *
 * Owns:    its bookkeeping. Borrows: every posted buffer until its request is done or cancelled.
 * Threads: one endpoint is bound to one thread; only mr_channel_wake may be called from any thread.
 * Errors:  MR_E_PEER_LOST: the peer is gone (from post or from test: implementations differ). MR_E_PROTOCOL: a message
 *          is longer than the posted buffer (only this receive fails, the send completes). MR_E_NO_MEMORY: all request
 *          slots are in use (their number is set at create). MR_E_INVALID: a peer or a tag that does not exist. A post
 *          that fails leaves nothing posted.
 * Nothing is allocated after create. An endpoint may send to itself. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_CHANNEL_H
#define MR_PROTO_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/base/status.h"
#include "proto/secret.h"

typedef struct mr_channel mr_channel;

enum {
    MR_CHANNEL_MAX_TAG = 32767,  /* the largest tag that every MPI library must accept */
    MR_CHANNEL_NAME_BYTES = 112, /* buffer for the name of a peer */
};

/* A handle to a posted send or receive; 0: none. The handle is invalid after test has reported the request as done or
 * failed, or after cancel has returned. */
typedef uint64_t mr_channel_request;

typedef struct mr_completion {
    bool done;
    size_t bytes; /* length of the message; 0 until done */
} mr_completion;

typedef struct mr_channel_ops {
    const char *name;
    mr_status (*post_send)(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                           mr_channel_request *out, mr_err *err);
    mr_status (*post_recv)(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                           mr_channel_request *out, mr_err *err);
    mr_status (*test)(mr_channel *ch, mr_channel_request request, mr_completion *out, mr_err *err);
    bool (*cancel)(mr_channel *ch, mr_channel_request request);
    /* NULL: cancel always succeeds. */
    void (*free_later)(mr_channel *ch, const mr_channel_request *requests, int32_t n, void *block, size_t bytes);
    size_t (*left_bytes)(mr_channel *ch);
    void (*discard)(mr_channel *ch, int32_t peer, uint32_t tag, size_t most_bytes); /* NULL: nothing to do */
    mr_status (*wait)(mr_channel *ch, int64_t deadline_ns, mr_err *err);
    void (*progress)(mr_channel *ch); /* NULL: nothing to do */
    void (*wake)(mr_channel *ch);
    void (*peer_gone)(mr_channel *ch, int32_t peer); /* NULL: nothing to do */
    /* NULL: peers have numbers only. */
    void (*peer_name)(const mr_channel *ch, int32_t peer, char out[MR_CHANNEL_NAME_BYTES]);
    void (*destroy)(mr_channel *ch);
} mr_channel_ops;

/* Every implementation begins with this. */
struct mr_channel {
    const mr_channel_ops *ops;
    int32_t self;    /* this endpoint */
    int32_t n_peers; /* endpoints are 0 .. n_peers - 1 */
    /* Sends and receives may have addresses in the memory of a device, which is the thread's current one. */
    bool takes_device_memory;
    /* The key material of the frames of links, equal at all endpoints; borrowed. NULL, or not set: frames have plain
     * checksums. Set it before links are created. */
    const mr_secret *secret;
};

/* Whether frames of somebody without the secret are refused. */
static inline bool mr_channel_has_secret(const mr_channel *ch) {
    return ch->secret && ch->secret->is_set;
}
/* Sends data[bytes] to peer. The caller keeps data valid until the request is done. Never blocks. */
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
 * large receives that have begun to arrive). The message goes on, and the buffer stays in use: pass its block to
 * mr_channel_free_later. */
static inline bool mr_channel_cancel(mr_channel *ch, mr_channel_request request) {
    return request ? ch->ops->cancel(ch, request) : true;
}
/* The caller knows from elsewhere that a peer is gone for good: what waits to be sent to it may be thrown away, and its
 * end of the connection is not listened to any more. Cancel the requests of the peer all the same. */
static inline void mr_channel_peer_gone(mr_channel *ch, int32_t peer) {
    if (ch->ops->peer_gone)
        ch->ops->peer_gone(ch, peer);
}
/* After mr_channel_cancel has refused some of requests[n], whose buffers are in block[bytes]: frees the block (mr_free)
 * as soon as none of them uses it. The block stays until the process ends if the peer is lost. Allocates. */
static inline void mr_channel_free_later(mr_channel *ch, const mr_channel_request *requests, int32_t n, void *block,
                                         size_t bytes) {
    if (ch->ops->free_later)
        ch->ops->free_later(ch, requests, n, block, bytes);
}
/* The bytes of blocks that mr_channel_free_later has not freed yet. */
static inline size_t mr_channel_left_bytes(mr_channel *ch) {
    return ch->ops->left_bytes ? ch->ops->left_bytes(ch) : 0;
}
/* Takes and drops the messages of up to most_bytes from (peer, tag) that come while no receive is posted, so that their
 * sends end: for some time, or until a receive of (peer, tag) is posted. */
static inline void mr_channel_discard(mr_channel *ch, int32_t peer, uint32_t tag, size_t most_bytes) {
    if (ch->ops->discard)
        ch->ops->discard(ch, peer, tag, most_bytes);
}
/* Returns when a request may have completed since the last wait, after a wake, or at the deadline (with MR_OK). May
 * also return without a reason, so the caller tests its requests and waits again. Deadlines are those of
 * mr_clock_now_ns(). */
MR_MUST_USE static inline mr_status mr_channel_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    return ch->ops->wait(ch, deadline_ns, err);
}
/* Lets messages make progress during other work, without blocking. Call often, from the thread of the endpoint. */
static inline void mr_channel_progress(mr_channel *ch) {
    if (ch->ops->progress)
        ch->ops->progress(ch);
}
/* Writes a name such as "rank 2 on node7" or "endpoint 2". Returns out. */
static inline const char *mr_channel_peer_name(const mr_channel *ch, int32_t peer, char out[MR_CHANNEL_NAME_BYTES]) {
    if (ch->ops->peer_name)
        ch->ops->peer_name(ch, peer, out);
    else
        snprintf(out, MR_CHANNEL_NAME_BYTES, "endpoint %d", (int)peer);
    return out;
}
/* Makes the present wait of this endpoint return, or else its next wait. Thread-safe. */
static inline void mr_channel_wake(mr_channel *ch) {
    ch->ops->wake(ch);
}
/* Cancels all posted requests. Requests of other endpoints to and from this endpoint fail with MR_E_PEER_LOST. NULL is
 * accepted. */
static inline void mr_channel_destroy(mr_channel *ch) {
    if (ch)
        ch->ops->destroy(ch);
}

#endif
