// SPDX-License-Identifier: Apache-2.0
#include "channel_delay.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

enum { LOSSES = 1 << 20 }; /* stream of the random numbers for losses; jitter uses the streams below */

typedef enum state {
    STATE_FREE,
    STATE_HELD,   /* a send that is not yet passed to the inner channel */
    STATE_POSTED, /* passed on: inner is the request of the inner channel */
    STATE_FAILED, /* the inner channel refused the send on release: status says why */
} state;

typedef struct request {
    state state;
    mr_status status;
    uint32_t generation;
    int32_t peer;
    uint32_t tag;
    bool is_send;
    const void *data;
    size_t bytes;
    int64_t release_ns;
    int32_t next; /* next held request by release_ns, or next free request; -1: none */
    mr_channel_request inner;
} request;

typedef struct delay {
    mr_channel base; /* first */
    mr_channel_ops ops;
    mr_channel *inner; /* NULL: this endpoint is dead */
    channel_delay_config config;
    request *requests;
    int32_t free, held;       /* -1: none */
    int64_t *link_free_ns;    /* [n_peers]: when the link has sent all earlier messages */
    bool *gone;               /* [n_peers]: the inner channel reported the peer as lost */
    uint64_t n_sent, n_drawn; /* n_drawn: random numbers for losses */
} delay;

static delay *delay_of(mr_channel *ch) {
    return (delay *)ch;
}

/* Whether this endpoint is dead, or peer is known to be lost. */
static bool is_lost(const delay *d, int32_t peer) {
    return !d->inner || (peer >= 0 && peer < d->base.n_peers && d->gone[peer]);
}

static mr_status lost(int32_t peer, mr_err *err) {
    return mr_err_set(err, MR_E_PEER_LOST, "endpoint %" PRId32 " is gone", peer);
}

static request *request_of(delay *d, mr_channel_request handle) {
    uint64_t idx = (handle & UINT32_MAX) - 1;
    if (idx >= (uint64_t)d->config.max_requests)
        return NULL;
    request *r = &d->requests[idx];
    return r->state != STATE_FREE && r->generation == handle >> 32 ? r : NULL;
}

static request *take(delay *d, mr_err *err) {
    if (d->free < 0) {
        (void)mr_err_set(err, MR_E_NO_MEMORY, "all %" PRId32 " requests are in use", d->config.max_requests);
        return NULL;
    }
    request *r = &d->requests[d->free];
    d->free = r->next;
    return r;
}

static void give_back(delay *d, request *r) {
    r->state = STATE_FREE;
    r->generation++;
    r->next = d->free;
    d->free = (int32_t)(r - d->requests);
}

static mr_channel_request handle_of(const delay *d, const request *r) {
    return (mr_channel_request)r->generation << 32 | (mr_channel_request)(r - d->requests + 1);
}

/* --- Held sends -------------------------------------------------------------------------------------------------- */

static void hold(delay *d, request *r) {
    int32_t *at = &d->held;
    while (*at >= 0 && d->requests[*at].release_ns <= r->release_ns)
        at = &d->requests[*at].next;
    r->next = *at;
    *at = (int32_t)(r - d->requests);
    r->state = STATE_HELD;
}

static void unhold(delay *d, const request *r) {
    int32_t *at = &d->held, idx = (int32_t)(r - d->requests);
    while (*at != idx)
        at = &d->requests[*at].next;
    *at = r->next;
}

static bool is_dropped(delay *d) {
    return d->config.loss > 0 &&
           mr_rng_f32(d->config.seed, LOSSES + (uint64_t)d->base.self, d->n_drawn++) < (float)d->config.loss;
}

/* When a message of this size may be sent: not before earlier messages of the same (peer, tag). */
static int64_t release_time(delay *d, int32_t peer, uint32_t tag, size_t bytes) {
    int64_t now = mr_clock_now_ns(), left = d->link_free_ns[peer] > now ? d->link_free_ns[peer] : now;
    if (d->config.bytes_per_second > 0)
        left += (int64_t)((double)bytes / d->config.bytes_per_second * 1e9);
    d->link_free_ns[peer] = left;
    float part = mr_rng_f32(d->config.seed, (uint64_t)d->base.self, d->n_sent++);
    int64_t release = left + d->config.latency_ns + (int64_t)((double)part * (double)d->config.jitter_ns);
    while (is_dropped(d))
        release += d->config.resend_ns;
    for (int32_t i = d->held; i >= 0; i = d->requests[i].next)
        if (d->requests[i].peer == peer && d->requests[i].tag == tag && d->requests[i].release_ns > release)
            release = d->requests[i].release_ns;
    return release;
}

/* Posts each held message whose release time has come. */
static void release_due(delay *d) {
    int64_t now = d->held < 0 ? 0 : mr_clock_now_ns();
    while (d->held >= 0 && d->requests[d->held].release_ns <= now) {
        request *r = &d->requests[d->held];
        d->held = r->next;
        r->status = mr_channel_post_send(d->inner, r->peer, r->tag, r->data, r->bytes, &r->inner, NULL);
        r->state = r->status == MR_OK ? STATE_POSTED : STATE_FAILED;
        d->gone[r->peer] |= r->status == MR_E_PEER_LOST;
    }
}

/* --- The channel ------------------------------------------------------------------------------------------------- */

static mr_status delay_post_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                                 mr_channel_request *out, mr_err *err) {
    delay *d = delay_of(ch);
    if (peer < 0 || peer >= ch->n_peers || tag > MR_CHANNEL_MAX_TAG)
        return mr_err_set(err, MR_E_INVALID, "no endpoint %" PRId32 " with tag %" PRIu32, peer, tag);
    release_due(d);
    if (is_lost(d, peer))
        return lost(peer, err);
    request *r = take(d, err);
    if (!r)
        return MR_E_NO_MEMORY;
    r->peer = peer;
    r->tag = tag;
    r->is_send = true;
    r->data = data;
    r->bytes = bytes;
    r->release_ns = release_time(d, peer, tag, bytes);
    hold(d, r);
    *out = handle_of(d, r);
    if (d->config.dies_after > 0 && d->n_sent >= (uint64_t)d->config.dies_after) {
        mr_channel_destroy(d->inner);
        d->inner = NULL;
        d->held = -1;
    }
    return MR_OK;
}

static mr_status delay_post_recv(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                                 mr_channel_request *out, mr_err *err) {
    delay *d = delay_of(ch);
    release_due(d);
    if (is_lost(d, peer))
        return lost(peer, err);
    request *r = take(d, err);
    if (!r)
        return MR_E_NO_MEMORY;
    mr_status status = mr_channel_post_recv(d->inner, peer, tag, buffer, capacity, &r->inner, err);
    if (status != MR_OK) {
        give_back(d, r);
        return status;
    }
    r->state = STATE_POSTED;
    r->peer = peer;
    r->is_send = false;
    *out = handle_of(d, r);
    return MR_OK;
}

static mr_status delay_test(mr_channel *ch, mr_channel_request handle, mr_completion *out, mr_err *err) {
    delay *d = delay_of(ch);
    release_due(d);
    request *r = request_of(d, handle);
    if (!r)
        return mr_err_set(err, MR_E_INVALID, "request 0x%" PRIx64 " is not posted", handle);
    mr_completion done = {0};
    mr_status status = MR_OK;
    if (!d->inner)
        status = lost(d->base.self, err);
    else if (r->state == STATE_POSTED)
        status = mr_channel_test(d->inner, r->inner, &done, err);
    else if (r->state == STATE_FAILED)
        status = mr_err_set(err, r->status, "a message to endpoint %" PRId32 " was not sent", r->peer);
    d->gone[r->peer] |= status == MR_E_PEER_LOST;
    if (status == MR_OK)
        *out = done;
    if (status != MR_OK || done.done)
        give_back(d, r);
    return status;
}

static bool delay_cancel(mr_channel *ch, mr_channel_request handle) {
    delay *d = delay_of(ch);
    request *r = request_of(d, handle);
    bool ours = true;
    if (!r)
        return true;
    if (r->state == STATE_HELD && d->inner)
        unhold(d, r);
    else if (r->state == STATE_POSTED && d->inner)
        ours = mr_channel_cancel(d->inner, r->inner);
    give_back(d, r);
    return ours;
}

static mr_status delay_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    delay *d = delay_of(ch);
    if (!d->inner)
        return lost(ch->self, err);
    release_due(d);
    int64_t next = d->held >= 0 ? d->requests[d->held].release_ns : MR_NEVER;
    mr_status status = mr_channel_wait(d->inner, next < deadline_ns ? next : deadline_ns, err);
    release_due(d);
    return status;
}

static void delay_progress(mr_channel *ch) {
    delay *d = delay_of(ch);
    release_due(d);
    if (d->inner)
        mr_channel_progress(d->inner);
}

static void delay_wake(mr_channel *ch) {
    delay *d = delay_of(ch);
    if (d->inner)
        mr_channel_wake(d->inner);
}

static void delay_peer_name(const mr_channel *ch, int32_t peer, char out[MR_CHANNEL_NAME_BYTES]) {
    const delay *d = (const delay *)ch;
    if (d->inner)
        mr_channel_peer_name(d->inner, peer, out);
    else
        snprintf(out, MR_CHANNEL_NAME_BYTES, "endpoint %" PRId32, peer);
}

static void delay_destroy(mr_channel *ch) {
    delay *d = delay_of(ch);
    mr_channel_destroy(d->inner);
    mr_free(d->requests);
    mr_free(d->link_free_ns);
    mr_free(d->gone);
    mr_free(d);
}

mr_status channel_delay_create(mr_channel *inner, const channel_delay_config *config, mr_channel **out, mr_err *err) {
    delay *d = mr_alloc(sizeof *d);
    if (d) {
        d->config = *config;
        d->inner = inner;
        d->requests = mr_alloc_array((size_t)config->max_requests, sizeof *d->requests);
        d->link_free_ns = mr_alloc_array((size_t)inner->n_peers, sizeof *d->link_free_ns);
        d->gone = mr_alloc_array((size_t)inner->n_peers, sizeof *d->gone);
    }
    if (!d || !d->requests || !d->link_free_ns || !d->gone) {
        if (d) {
            mr_free(d->requests);
            mr_free(d->link_free_ns);
            mr_free(d->gone);
        }
        mr_free(d);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a channel that delays");
    }
    d->ops = (mr_channel_ops){
        .name = "delay",
        .post_send = delay_post_send,
        .post_recv = delay_post_recv,
        .test = delay_test,
        .cancel = delay_cancel,
        .wait = delay_wait,
        .progress = delay_progress,
        .wake = delay_wake,
        .peer_name = inner->ops->peer_name ? delay_peer_name : NULL, /* NULL stays NULL */
        .destroy = delay_destroy,
    };
    d->base = (mr_channel){.ops = &d->ops, .self = inner->self, .n_peers = inner->n_peers};
    d->free = d->held = -1;
    for (int32_t i = config->max_requests; i-- > 0;)
        give_back(d, &d->requests[i]);
    *out = &d->base;
    return MR_OK;
}
