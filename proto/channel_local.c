/* proto/channel_local.c - matches sends and receives of threads in one hub, under one lock. A post looks for its
 * counterpart in the lists of the receiving endpoint, and copies or queues. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/channel_local.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "proto/limits.h"

enum {
    MAX_ENDPOINTS = MR_MAX_STAGES + 1,
    MAX_REQUESTS = 1 << 20,
    N_BUCKETS = 32, /* lists of an endpoint, by (peer, tag) */
};

typedef enum request_state {
    REQUEST_FREE,
    REQUEST_QUEUED,  /* waits in a list of the receiving endpoint */
    REQUEST_COPYING, /* matched; one of the two threads copies without holding the lock */
    REQUEST_DONE,    /* finished with `status`, until the owner tests or cancels the request */
} request_state;

typedef struct request request;
typedef struct request_list {
    request *first, *last;
} request_list;

struct request {
    request *prev, *next; /* in list; next: also in the free list */
    request_list *list;   /* the list in which the request is queued */
    request_state state;
    bool is_send;
    mr_status status;
    uint32_t tag, generation; /* the generation is part of the handle, so that a stale handle is noticed */
    int32_t owner, peer;
    const void *data;     /* send */
    void *buffer;         /* receive */
    size_t bytes;         /* length of data, or capacity of buffer */
    size_t message_bytes; /* length of the matched message, when done */
};

typedef enum endpoint_state { ENDPOINT_NEW, ENDPOINT_OPEN, ENDPOINT_LOST } endpoint_state;

typedef struct endpoint {
    mr_channel base;
    mr_local_hub *hub;
    endpoint_state state;
    mr_cond changed; /* only the thread of the endpoint waits for this condition */
    bool event;      /* a request has finished, or a wake has come, since the last wait */
    request *table;  /* [max_requests] */
    request *free;
    request_list posted[N_BUCKETS];   /* receives of this endpoint, in order */
    request_list incoming[N_BUCKETS]; /* sends of any endpoint to this one, in order */
} endpoint;

struct mr_local_hub {
    mr_mutex lock; /* guards everything in the hub but the bytes of messages */
    int32_t n_endpoints, max_requests;
    request *requests;
    endpoint endpoints[];
};

static endpoint *endpoint_of(mr_channel *ch) {
    return (endpoint *)ch; /* base comes first */
}

static uint32_t bucket_of(int32_t peer, uint32_t tag) {
    return ((uint32_t)peer * 31u + tag) % N_BUCKETS;
}

static void list_append(request_list *list, request *r) {
    r->list = list;
    r->prev = list->last;
    r->next = NULL;
    *(list->last ? &list->last->next : &list->first) = r;
    list->last = r;
}

static void list_remove(request *r) {
    request_list *list = r->list;
    *(r->prev ? &r->prev->next : &list->first) = r->next;
    *(r->next ? &r->next->prev : &list->last) = r->prev;
    r->list = NULL;
    r->prev = r->next = NULL;
}

/* The oldest request in the list that owner has posted for (peer, tag). */
static request *list_find(const request_list *list, int32_t owner, int32_t peer, uint32_t tag) {
    for (request *r = list->first; r; r = r->next)
        if (r->owner == owner && r->peer == peer && r->tag == tag)
            return r;
    return NULL;
}

static void endpoint_notify(endpoint *ep) {
    ep->event = true;
    mr_cond_signal(&ep->changed);
}

static void request_finish(mr_local_hub *hub, request *r, mr_status status, size_t message_bytes) {
    r->state = REQUEST_DONE;
    r->status = status;
    r->message_bytes = message_bytes;
    endpoint_notify(&hub->endpoints[r->owner]);
}

static void request_free(endpoint *ep, request *r) {
    r->state = REQUEST_FREE;
    r->generation++;
    r->next = ep->free;
    ep->free = r;
}

static mr_channel_request request_handle(const endpoint *ep, const request *r) {
    return (uint64_t)r->generation << 32 | (uint64_t)(r - ep->table + 1);
}

/* The posted request of a handle; NULL: the handle is stale. */
static request *request_of(endpoint *ep, mr_channel_request handle) {
    uint64_t idx = (handle & UINT32_MAX) - 1;
    if (idx >= (uint64_t)ep->hub->max_requests)
        return NULL;
    request *r = &ep->table[idx];
    return r->state != REQUEST_FREE && r->generation == handle >> 32 ? r : NULL;
}

/* Copies the message of send into recv. Both requests have been taken out of their lists. The lock is held on entry and
 * on return, but not during the copy, so that a large message does not block other endpoints. */
static void deliver(mr_local_hub *hub, request *send, request *recv) {
    size_t n = send->bytes;
    bool fits = n <= recv->bytes;
    if (fits && n > 0) {
        send->state = recv->state = REQUEST_COPYING;
        mr_mutex_unlock(&hub->lock);
        memcpy(recv->buffer, send->data, n);
        mr_mutex_lock(&hub->lock);
    }
    request_finish(hub, send, MR_OK, n);
    request_finish(hub, recv, fits ? MR_OK : MR_E_PROTOCOL, n);
}

/* Delivers r if a matching request is queued, else queues r. The lock is held. */
static void match_or_queue(mr_local_hub *hub, request *r) {
    endpoint *receiver = &hub->endpoints[r->is_send ? r->peer : r->owner];
    int32_t sender = r->is_send ? r->owner : r->peer;
    uint32_t bucket = bucket_of(sender, r->tag);
    request_list *mine = &receiver->posted[bucket], *theirs = &receiver->incoming[bucket];
    if (r->is_send) {
        mine = theirs;
        theirs = &receiver->posted[bucket];
    }
    request *other = list_find(theirs, r->peer, r->owner, r->tag);
    if (!other) {
        r->state = REQUEST_QUEUED;
        list_append(mine, r);
        return;
    }
    list_remove(other);
    deliver(hub, r->is_send ? r : other, r->is_send ? other : r);
}

/* Posts a copy of wish. The caller has set peer, tag, is_send, and the buffer with its length. */
static mr_status post(mr_channel *ch, const request *wish, mr_channel_request *out, mr_err *err) {
    endpoint *ep = endpoint_of(ch);
    mr_local_hub *hub = ep->hub;
    mr_status status = MR_OK;
    if (wish->peer < 0 || wish->peer >= hub->n_endpoints || wish->tag > MR_CHANNEL_MAX_TAG)
        return mr_err_set(err, MR_E_INVALID, "no endpoint %" PRId32 " of %" PRId32 " with tag %" PRIu32 " (at most %d)",
                          wish->peer, hub->n_endpoints, wish->tag, MR_CHANNEL_MAX_TAG);
    mr_mutex_lock(&hub->lock);
    request *r = ep->free;
    if (hub->endpoints[wish->peer].state == ENDPOINT_LOST) {
        status = mr_err_set(err, MR_E_PEER_LOST, "endpoint %" PRId32 " is gone", wish->peer);
    } else if (!r) {
        status = mr_err_set(err, MR_E_NO_MEMORY, "all %" PRId32 " requests of endpoint %" PRId32 " are in use",
                            hub->max_requests, ch->self);
    } else {
        ep->free = r->next;
        uint32_t generation = r->generation;
        *r = *wish;
        r->owner = ch->self;
        r->generation = generation;
        *out = request_handle(ep, r);
        match_or_queue(hub, r);
    }
    mr_mutex_unlock(&hub->lock);
    return status;
}

static mr_status local_post_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                                 mr_channel_request *out, mr_err *err) {
    const request wish = {.is_send = true, .peer = peer, .tag = tag, .data = data, .bytes = bytes};
    return post(ch, &wish, out, err);
}

static mr_status local_post_recv(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                                 mr_channel_request *out, mr_err *err) {
    const request wish = {.peer = peer, .tag = tag, .buffer = buffer, .bytes = capacity};
    return post(ch, &wish, out, err);
}

static mr_status request_status(const request *r, mr_err *err) {
    if (r->status == MR_E_PROTOCOL)
        return mr_err_set(err, MR_E_PROTOCOL,
                          "endpoint %" PRId32 " sent a message of %zu bytes with tag %" PRIu32
                          " where at most %zu are taken",
                          r->peer, r->message_bytes, r->tag, r->bytes);
    if (r->status == MR_E_PEER_LOST)
        return mr_err_set(err, MR_E_PEER_LOST, "endpoint %" PRId32 " has gone before a message %s it with tag %" PRIu32,
                          r->peer, r->is_send ? "to" : "from", r->tag);
    return r->status;
}

static mr_status local_test(mr_channel *ch, mr_channel_request handle, mr_completion *out, mr_err *err) {
    endpoint *ep = endpoint_of(ch);
    mr_status status = MR_OK;
    mr_mutex_lock(&ep->hub->lock);
    request *r = request_of(ep, handle);
    if (!r) {
        status = mr_err_set(err, MR_E_INVALID, "request 0x%" PRIx64 " of endpoint %" PRId32 " is not posted", handle,
                            ch->self);
    } else if (r->state != REQUEST_DONE) {
        *out = (mr_completion){.done = false};
    } else {
        status = request_status(r, err);
        if (status == MR_OK)
            *out = (mr_completion){.done = true, .bytes = r->message_bytes};
        request_free(ep, r);
    }
    mr_mutex_unlock(&ep->hub->lock);
    return status;
}

/* Frees r in any state. Waits while another thread copies from or into its buffer. The lock is held. */
static void request_withdraw(endpoint *ep, request *r) {
    while (r->state == REQUEST_COPYING)
        (void)mr_cond_wait_until(&ep->changed, &ep->hub->lock, MR_NEVER);
    if (r->state == REQUEST_QUEUED)
        list_remove(r);
    if (r->state != REQUEST_FREE)
        request_free(ep, r);
}

static bool local_cancel(mr_channel *ch, mr_channel_request handle) {
    endpoint *ep = endpoint_of(ch);
    mr_mutex_lock(&ep->hub->lock);
    request *r = request_of(ep, handle);
    if (r)
        request_withdraw(ep, r);
    mr_mutex_unlock(&ep->hub->lock);
    return true;
}

static mr_status local_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    (void)err;
    endpoint *ep = endpoint_of(ch);
    mr_mutex_lock(&ep->hub->lock);
    while (!ep->event && mr_cond_wait_until(&ep->changed, &ep->hub->lock, deadline_ns))
        continue;
    ep->event = false;
    mr_mutex_unlock(&ep->hub->lock);
    return MR_OK;
}

static void local_wake(mr_channel *ch) {
    endpoint *ep = endpoint_of(ch);
    mr_mutex_lock(&ep->hub->lock);
    endpoint_notify(ep);
    mr_mutex_unlock(&ep->hub->lock);
}

static void local_destroy(mr_channel *ch) {
    endpoint *ep = endpoint_of(ch);
    mr_local_hub *hub = ep->hub;
    mr_mutex_lock(&hub->lock);
    ep->state = ENDPOINT_LOST; /* before the loops below: request_withdraw may release the lock while it waits */
    for (int32_t i = 0; i < hub->max_requests; i++)
        request_withdraw(ep, &ep->table[i]);
    for (int64_t i = 0; i < (int64_t)hub->n_endpoints * hub->max_requests; i++) {
        request *r = &hub->requests[i];
        if (r->state == REQUEST_QUEUED && r->peer == ch->self) {
            list_remove(r);
            request_finish(hub, r, MR_E_PEER_LOST, 0);
        }
    }
    mr_mutex_unlock(&hub->lock);
}

static const mr_channel_ops local_ops = {
    .name = "local",
    .post_send = local_post_send,
    .post_recv = local_post_recv,
    .test = local_test,
    .cancel = local_cancel,
    .wait = local_wait,
    .wake = local_wake,
    .destroy = local_destroy,
};

static void endpoint_init(mr_local_hub *hub, int32_t self) {
    endpoint *ep = &hub->endpoints[self];
    ep->base = (mr_channel){.ops = &local_ops, .self = self, .n_peers = hub->n_endpoints};
    ep->hub = hub;
    ep->table = hub->requests + (int64_t)self * hub->max_requests;
    for (int32_t i = hub->max_requests; i-- > 0;)
        request_free(ep, &ep->table[i]);
    mr_cond_init(&ep->changed);
}

mr_status mr_local_hub_create(int32_t n_endpoints, int32_t max_requests, mr_local_hub **out, mr_err *err) {
    if (n_endpoints < 1 || n_endpoints > MAX_ENDPOINTS || max_requests < 1 || max_requests > MAX_REQUESTS)
        return mr_err_set(err, MR_E_INVALID,
                          "local hub of %" PRId32 " endpoints (1 to %d) with %" PRId32 " requests each (1 to %d)",
                          n_endpoints, MAX_ENDPOINTS, max_requests, MAX_REQUESTS);
    mr_local_hub *hub = mr_alloc(sizeof *hub + (size_t)n_endpoints * sizeof hub->endpoints[0]);
    request *requests = mr_alloc_array((size_t)n_endpoints * (size_t)max_requests, sizeof *requests);
    if (!hub || !requests) {
        mr_free(hub);
        mr_free(requests);
        return mr_err_set(err, MR_E_NO_MEMORY,
                          "no memory for a local hub of %" PRId32 " endpoints with %" PRId32 " requests each",
                          n_endpoints, max_requests);
    }
    mr_mutex_init(&hub->lock);
    hub->n_endpoints = n_endpoints;
    hub->max_requests = max_requests;
    hub->requests = requests;
    for (int32_t i = 0; i < n_endpoints; i++)
        endpoint_init(hub, i);
    *out = hub;
    return MR_OK;
}

void mr_local_hub_destroy(mr_local_hub *hub) {
    if (!hub)
        return;
    for (int32_t i = 0; i < hub->n_endpoints; i++) {
        MR_ASSERT(hub->endpoints[i].state != ENDPOINT_OPEN);
        mr_cond_deinit(&hub->endpoints[i].changed);
    }
    mr_mutex_deinit(&hub->lock);
    mr_free(hub->requests);
    mr_free(hub);
}

mr_status mr_local_channel_open(mr_local_hub *hub, int32_t self, mr_channel **out, mr_err *err) {
    mr_status status = MR_OK;
    if (self < 0 || self >= hub->n_endpoints)
        return mr_err_set(err, MR_E_INVALID, "no endpoint %" PRId32 " in a local hub of %" PRId32, self,
                          hub->n_endpoints);
    endpoint *ep = &hub->endpoints[self];
    mr_mutex_lock(&hub->lock);
    if (ep->state == ENDPOINT_NEW) {
        ep->state = ENDPOINT_OPEN;
        *out = &ep->base;
    } else {
        status = mr_err_set(err, MR_E_INVALID, "endpoint %" PRId32 " was opened before", self);
    }
    mr_mutex_unlock(&hub->lock);
    return status;
}
