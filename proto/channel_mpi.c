/* proto/channel_mpi.c - the channels over MPI. All MPI calls are made by one thread, the owner. The other endpoint of
 * rank 0 submits its requests to a list, and the owner takes them from there. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/channel_mpi.h"

#include <inttypes.h>
#include <limits.h>
#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "proto/mpi_sinks.h"
#include "proto/mpi_sockets.h"

enum {
    MAX_REQUESTS = 1 << 20,
    CANCEL_TRIES = 100, /* tests after MPI_Cancel until a request counts as stuck */
    LOST_LOOKS = 100,   /* tests in a row without a message, until all messages of a lost rank have been taken */
};
/* How the owner waits. The owner spins for IDLE_AFTER_NS after its last work, then sleeps. If threads share cores, the
 * owner sleeps after SHARED_SPIN_NS for 1 / SHARED_SLEEP_SHARE of the time that it has waited so far, at most for
 * SHARED_SLEEP_NS, so that a message is not late for its step. A yield that takes longer than LOST_NS has given the
 * core to another program: for CROWDED_NS the owner then sleeps for CROWDED_SLEEP_NS in place of a yield, as a thread
 * that wakes up gets a core earlier than one that has yielded. */
static const int64_t IDLE_AFTER_NS = MR_NS_PER_S, IDLE_SLEEP_NS = 5 * MR_NS_PER_MS, SHARED_SPIN_NS = 50000,
                     SHARED_SLEEP_NS = MR_NS_PER_MS / 2, LOST_NS = MR_NS_PER_MS, CROWDED_NS = 20 * MR_NS_PER_MS,
                     CROWDED_SLEEP_NS = 10000, OWNER_PATIENCE_NS = 2 * MR_NS_PER_S;
enum { SHARED_SLEEP_SHARE = 8 };

typedef enum request_state {
    REQUEST_FREE,
    REQUEST_SUBMITTED, /* waits for the owner to post it */
    REQUEST_ACTIVE,    /* posted to MPI */
    REQUEST_DONE,      /* finished with `status`, until its endpoint tests or cancels the request */
    REQUEST_LEFT,      /* cancelled by its endpoint, still posted: MPI has not released the buffer yet */
    REQUEST_STUCK,     /* failed with `status`, but MPI never releases the buffer */
} request_state;

/* Memory that is freed when the last request that uses it has ended. */
typedef struct left_block {
    void *block;
    size_t bytes;
    int32_t n_requests;
} left_block;

typedef struct request request;
struct request {
    request *next; /* in the free list, or in the submitted list */
    request_state state;
    bool is_send, cancel; /* cancel: the endpoint wants the request cancelled */
    bool queued;          /* in the submitted list; must not be freed until the owner has taken it off the list */
    mr_status status;
    uint32_t tag, generation; /* the generation is part of the handle, so that a stale handle is noticed */
    int32_t self, peer;       /* endpoints */
    void *buffer;
    size_t bytes;         /* length to send, or capacity to receive */
    size_t message_bytes; /* length of the message, when done */
    int active_idx;
    left_block *left; /* of a request that is left or stuck; NULL: its endpoint has not passed the block on */
};

typedef struct endpoint {
    mr_channel base;
    mr_mpi *mpi;
    bool open;
    bool event;      /* a request has finished, or a wake has come, since the last wait */
    mr_cond changed; /* the thread of the endpoint waits for this condition; the owner only while it sleeps */
    request *table, *free;
} endpoint;

struct mr_mpi {
    mr_mpi_config config;
    int rank, n_ranks;
    mr_mpi_card *cards; /* [n_ranks] */
    mr_mpi_door door;   /* of this rank */
    mr_mpi_door *doors; /* [n_ranks] */
    /* [sender is the coordinator][receiver is the coordinator]: the coordinator shares rank 0 with a stage. */
    MPI_Comm comms[2][2];
    atomic_bool *lost;     /* [n_ranks] */
    atomic_bool *gone;     /* [n_ranks]: lost, or said to be gone by the owner of an endpoint */
    atomic_ullong n_looks; /* of the owner, for messages and losses */
    atomic_bool news;      /* a request was submitted, or a rank was lost, since the owner last looked */

    /* The owner has made no progress for OWNER_PATIENCE_NS. Until it makes progress again, a cancel does not wait for
     * the owner, and the request stays with the owner. */
    bool owner_stuck;

    mr_mutex lock; /* guards the endpoints and their requests */
    endpoint stage, coordinator;
    request *submitted, **submitted_end;
    mr_mpi_sinks *sinks; /* drained by the owner */
    size_t left_bytes;

    /* Only the owner uses the fields below. */
    MPI_Request *active; /* the first n_active of [2 * max_requests] */
    request **active_of;
    int *done_idx;
    MPI_Status *done_status;
    int n_active;
    int n_lost;               /* lost ranks whose requests have been ended */
    int n_gone;               /* gone ranks to whose hosts MPI has no connections any more */
    int64_t busy_ns;          /* time of the last work */
    int64_t crowded_until_ns; /* until then, the owner does not yield, but sleeps */
    char byte_too_many;       /* see receive_from_self */
};

/* --- Requests ---------------------------------------------------------------------------------------------------- */

static endpoint *endpoint_of(mr_channel *ch) {
    return (endpoint *)ch; /* base comes first */
}

static bool is_coordinator(const mr_mpi *m, int32_t idx) {
    return idx == m->n_ranks;
}

static int rank_of(const mr_mpi *m, int32_t idx) {
    return is_coordinator(m, idx) ? 0 : idx;
}

static endpoint *endpoint_with(mr_mpi *m, int32_t self) {
    return is_coordinator(m, self) ? &m->coordinator : &m->stage;
}

static mr_channel_request request_handle(const endpoint *ep, const request *r) {
    return (uint64_t)r->generation << 32 | (uint64_t)(r - ep->table + 1);
}

/* The posted request of a handle; NULL: the handle is stale. */
static request *request_of(endpoint *ep, mr_channel_request handle) {
    uint64_t idx = (handle & UINT32_MAX) - 1;
    if (idx >= (uint64_t)ep->mpi->config.max_requests)
        return NULL;
    request *r = &ep->table[idx];
    return r->state != REQUEST_FREE && r->generation == handle >> 32 ? r : NULL;
}

static void request_free(endpoint *ep, request *r) {
    r->state = REQUEST_FREE;
    r->generation++;
    r->next = ep->free;
    ep->free = r;
}

static void endpoint_notify(endpoint *ep) {
    ep->event = true;
    mr_cond_signal(&ep->changed);
}

/* Frees a request that its endpoint has passed on with its block. The block is free when this was the last one. */
static void end_left(mr_mpi *m, request *r) {
    left_block *left = r->left;
    if (--left->n_requests == 0) {
        m->left_bytes -= left->bytes;
        mr_free(left->block);
        mr_free(left);
    }
    request_free(endpoint_with(m, r->self), r);
}

static void request_finish(mr_mpi *m, request *r, request_state state, mr_status status, size_t message_bytes) {
    r->state = state;
    r->status = status;
    r->message_bytes = message_bytes;
    endpoint_notify(endpoint_with(m, r->self));
    if (r->left && state == REQUEST_DONE && !r->queued)
        end_left(m, r);
}

static bool is_lost(const mr_mpi *m, const request *r) {
    return atomic_load(&m->lost[rank_of(m, r->peer)]);
}

/* --- The owner: all calls of MPI; the lock is held unless a comment says otherwise ------------------------------- */

static mr_status mpi_failed(int code, const char *what, mr_err *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    MPI_Error_string(code, text, &len);
    return mr_err_set(err, MR_E_IO, "%s: %.300s", what, text);
}

static mr_status request_mpi_status(int code) {
    int class = MPI_SUCCESS;
    if (code == MPI_SUCCESS)
        return MR_OK;
    MPI_Error_class(code, &class);
    return class == MPI_ERR_TRUNCATE ? MR_E_PROTOCOL : MR_E_PEER_LOST;
}

static void active_remove(mr_mpi *m, const request *r) {
    int last = --m->n_active;
    m->active[r->active_idx] = m->active[last];
    m->active_of[r->active_idx] = m->active_of[last];
    m->active_of[r->active_idx]->active_idx = r->active_idx;
}

/* Posts a receive from another endpoint of this process. If the receive is posted before the send, Open MPI (4.1.4)
 * cuts a short message that is too long without an error. Therefore the receive takes one more byte, in byte_too_many:
 * a message that fills this byte was too long. */
static int receive_from_self(mr_mpi *m, const request *r, MPI_Comm comm, MPI_Request *out) {
    const int bytes[2] = {(int)r->bytes, 1};
    MPI_Aint places[2];
    MPI_Datatype type;
    MPI_Get_address(r->buffer, &places[0]);
    MPI_Get_address(&m->byte_too_many, &places[1]);
    int code = MPI_Type_create_hindexed(2, bytes, places, MPI_BYTE, &type);
    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Type_commit(&type);
    if (code == MPI_SUCCESS)
        code = MPI_Irecv(MPI_BOTTOM, 1, type, m->rank, (int)r->tag, comm, out);
    MPI_Type_free(&type); /* MPI keeps the type until the receive ends */
    return code;
}

static MPI_Comm comm_between(const mr_mpi *m, int32_t sender, int32_t receiver) {
    return m->comms[is_coordinator(m, sender)][is_coordinator(m, receiver)];
}

/* Posts a submitted request to MPI. */
static void start_request(mr_mpi *m, request *r) {
    int32_t sender = r->is_send ? r->self : r->peer, receiver = r->is_send ? r->peer : r->self;
    MPI_Comm comm = comm_between(m, sender, receiver);
    MPI_Request *active = &m->active[m->n_active];
    int peer = rank_of(m, r->peer), code;
    if (!r->is_send)
        mr_mpi_sinks_remove(m->sinks, comm, peer, (int)r->tag);
    if (r->is_send)
        code = MPI_Isend(r->buffer, (int)r->bytes, MPI_BYTE, peer, (int)r->tag, comm, active);
    else if (peer == m->rank)
        code = receive_from_self(m, r, comm, active);
    else
        code = MPI_Irecv(r->buffer, (int)r->bytes, MPI_BYTE, peer, (int)r->tag, comm, active);
    if (code != MPI_SUCCESS) {
        request_finish(m, r, REQUEST_DONE, request_mpi_status(code), 0);
        return;
    }
    r->state = REQUEST_ACTIVE;
    r->active_idx = m->n_active;
    m->active_of[m->n_active++] = r;
}

/* Finishes r after MPI has completed it. status is valid if code is MPI_SUCCESS. */
static void finish_with(mr_mpi *m, request *r, int code, const MPI_Status *status) {
    int count = (int)r->bytes;
    if (!r->is_send && code == MPI_SUCCESS)
        MPI_Get_count(status, MPI_BYTE, &count);
    mr_status ended = (size_t)count > r->bytes ? MR_E_PROTOCOL : request_mpi_status(code);
    request_finish(m, r, REQUEST_DONE, ended, (size_t)count);
}

/* Ends an active request that was cancelled, or whose peer is gone. MPI can cancel a receive that no message has
 * matched. Other cancelled requests are left: they stay active until MPI completes them. A request to a lost peer that
 * MPI does not release is stuck. A request that turns out to be complete succeeds. */
static void withdraw(mr_mpi *m, request *r, mr_status status) {
    MPI_Request *active = &m->active[r->active_idx];
    MPI_Status mpi_status;
    int done = 0, cancelled = 0, code = MPI_SUCCESS;
    if (!r->is_send && r->state == REQUEST_ACTIVE)
        MPI_Cancel(active);
    for (int i = 0; i < CANCEL_TRIES && !done && code == MPI_SUCCESS; i++)
        code = MPI_Test(active, &done, &mpi_status);
    if (code == MPI_SUCCESS && !done && status == MR_E_CANCELLED) {
        request_finish(m, r, REQUEST_LEFT, status, 0);
        return;
    }
    active_remove(m, r);
    if (code == MPI_SUCCESS && done)
        MPI_Test_cancelled(&mpi_status, &cancelled);
    if (code == MPI_SUCCESS && (!done || cancelled))
        request_finish(m, r, done ? REQUEST_DONE : REQUEST_STUCK, status, 0);
    else
        finish_with(m, r, code, &mpi_status);
}

/* Empties the submitted list: posts new requests and withdraws cancelled ones. A request that has ended in the meantime
 * is only taken off the list. */
static void take_submitted(mr_mpi *m) {
    m->owner_stuck = false;
    while (m->submitted) {
        request *r = m->submitted;
        m->submitted = r->next;
        r->queued = false;
        if (r->state == REQUEST_ACTIVE)
            withdraw(m, r, MR_E_CANCELLED);
        else if (r->state == REQUEST_SUBMITTED && r->cancel)
            request_finish(m, r, REQUEST_DONE, MR_E_CANCELLED, 0);
        else if (r->state == REQUEST_SUBMITTED && is_lost(m, r))
            request_finish(m, r, REQUEST_DONE, MR_E_PEER_LOST, 0);
        else if (r->state == REQUEST_SUBMITTED)
            start_request(m, r);
        else
            request_finish(m, r, r->state, r->status, r->message_bytes); /* somebody may wait until r is off the list */
    }
    m->submitted_end = &m->submitted;
}

static void end_requests_of_lost(mr_mpi *m) {
    for (int i = 0; i < m->n_active;)
        if (is_lost(m, m->active_of[i]))
            withdraw(m, m->active_of[i], MR_E_PEER_LOST); /* the last active request moves to index i */
        else
            i++;
}

/* Finishes the requests that MPI_Testsome has reported. Before each test MPI_ERROR of all statuses is MPI_SUCCESS, and
 * MPI writes only errors, so the return code of MPI_Testsome is not needed. */
static void finish_tested(mr_mpi *m, int n_done) {
    for (int i = 0; i < n_done; i++) {
        int idx = m->done_idx[i];
        finish_with(m, m->active_of[idx], m->done_status[i].MPI_ERROR, &m->done_status[i]);
        m->done_status[i].MPI_ERROR = MPI_SUCCESS;
        m->active[idx] = MPI_REQUEST_NULL; /* MPI does so itself, except perhaps for failed requests */
    }
    for (int i = 0; i < m->n_active;)
        if (m->active[i] == MPI_REQUEST_NULL)
            active_remove(m, m->active_of[i]);
        else
            i++;
}

/* Tests all active requests, which lets MPI make progress. True: requests have ended. The lock is not held here and
 * below. */
static bool test_active(mr_mpi *m) {
    int n_done = 0;
    if (m->n_active > 0)
        (void)MPI_Testsome(m->n_active, m->active, &n_done, m->done_idx, m->done_status);
    if (n_done == 0 || n_done == MPI_UNDEFINED)
        return false;
    mr_mutex_lock(&m->lock);
    finish_tested(m, n_done);
    mr_mutex_unlock(&m->lock);
    m->busy_ns = mr_clock_now_ns();
    return true;
}

/* Ends the requests to and from ranks that were lost since the last call, after taking all messages they had sent. */
static void take_losses(mr_mpi *m) {
    int n_lost = 0;
    for (int i = 0; i < m->n_ranks; i++)
        n_lost += atomic_load(&m->lost[i]);
    if (n_lost == m->n_lost)
        return;
    m->n_lost = n_lost;
    for (int i = 0; i < LOST_LOOKS; i++)
        if (test_active(m))
            i = 0;
    mr_mutex_lock(&m->lock);
    end_requests_of_lost(m);
    mr_mutex_unlock(&m->lock);
}

/* Takes the connections to lost hosts away from MPI, when more ranks are gone. */
static void shut_doors(mr_mpi *m) {
    int n_gone = 0;
    for (int i = 0; i < m->n_ranks; i++)
        n_gone += atomic_load(&m->gone[i]);
    if (n_gone == m->n_gone)
        return;
    m->n_gone = n_gone;
    int32_t n = mr_mpi_doors_shut(m->doors, m->gone, m->n_ranks, m->rank);
    mr_log_write(MR_LOG_DEBUG, "mpi", "%d ranks are gone: %" PRId32 " connections are closed", n_gone, n);
}

/* Takes submitted requests and losses, and lets MPI make progress. */
static void progress(mr_mpi *m) {
    atomic_fetch_add_explicit(&m->n_looks, 1, memory_order_relaxed);
    if (atomic_exchange(&m->news, false)) {
        mr_mutex_lock(&m->lock);
        take_submitted(m);
        mr_mutex_unlock(&m->lock);
        take_losses(m);
        shut_doors(m);
        m->busy_ns = mr_clock_now_ns();
    }
    (void)test_active(m);
    mr_mpi_sinks_drain(m->sinks);
}

/* Sleeps until the deadline, or until there is news or an event. */
static void sleep_for(mr_mpi *m, int64_t deadline_ns) {
    mr_mutex_lock(&m->lock);
    if (!m->stage.event && !atomic_load(&m->news))
        (void)mr_cond_wait_until(&m->stage.changed, &m->lock, deadline_ns);
    mr_mutex_unlock(&m->lock);
}

/* Between two tests of the owner: yields the core, or sleeps as the constants at the top say. */
static void relax(mr_mpi *m, int64_t start_ns, int64_t now_ns, int64_t deadline_ns) {
    int64_t waited = now_ns - (start_ns > m->busy_ns ? start_ns : m->busy_ns), pause = 0;
    if (m->config.shares_cores && waited > SHARED_SPIN_NS)
        pause = waited / SHARED_SLEEP_SHARE < SHARED_SLEEP_NS ? waited / SHARED_SLEEP_SHARE : SHARED_SLEEP_NS;
    if (now_ns - m->busy_ns > IDLE_AFTER_NS)
        pause = IDLE_SLEEP_NS;
    if (pause < CROWDED_SLEEP_NS && now_ns < m->crowded_until_ns)
        pause = CROWDED_SLEEP_NS;
    if (pause == 0) {
        sched_yield();
        int64_t then_ns = mr_clock_now_ns();
        if (then_ns - now_ns > LOST_NS)
            m->crowded_until_ns = then_ns + CROWDED_NS;
    } else {
        sleep_for(m, deadline_ns - now_ns < pause ? deadline_ns : now_ns + pause);
    }
}

/* --- Channels ---------------------------------------------------------------------------------------------------- */

/* Adds r to the submitted list. The lock is held. A request of the owner is posted to MPI before this returns. */
static void submit(mr_mpi *m, endpoint *ep, request *r) {
    r->next = NULL;
    r->queued = true;
    *m->submitted_end = r;
    m->submitted_end = &r->next;
    if (ep == &m->stage) {
        take_submitted(m);
        return;
    }
    atomic_store(&m->news, true);
    mr_cond_signal(&m->stage.changed);
}

static mr_status check_post(const endpoint *ep, int32_t peer, uint32_t tag, size_t bytes, mr_err *err) {
    if (peer < 0 || peer >= ep->base.n_peers || tag > MR_CHANNEL_MAX_TAG)
        return mr_err_set(err, MR_E_INVALID, "no endpoint %" PRId32 " of %" PRId32 " with tag %" PRIu32 " (at most %d)",
                          peer, ep->base.n_peers, tag, MR_CHANNEL_MAX_TAG);
    if (bytes > INT_MAX)
        return mr_err_set(err, MR_E_INVALID, "a message of %zu bytes; MPI takes %d", bytes, INT_MAX);
    return MR_OK;
}

static mr_status peer_lost(const endpoint *ep, int32_t peer, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    return mr_err_set(err, MR_E_PEER_LOST, "%s is gone", mr_channel_peer_name(&ep->base, peer, name));
}

/* Posts a copy of wish. The caller has set peer, tag, is_send, and the buffer with its length. */
static mr_status post(mr_channel *ch, const request *wish, mr_channel_request *out, mr_err *err) {
    endpoint *ep = endpoint_of(ch);
    mr_mpi *m = ep->mpi;
    mr_status status = check_post(ep, wish->peer, wish->tag, wish->bytes, err);
    if (status != MR_OK)
        return status;
    if (atomic_load(&m->lost[rank_of(m, wish->peer)]))
        return peer_lost(ep, wish->peer, err);
    mr_mutex_lock(&m->lock);
    request *r = ep->free;
    if (r) {
        ep->free = r->next;
        uint32_t generation = r->generation;
        *r = *wish;
        r->state = REQUEST_SUBMITTED;
        r->self = ch->self;
        r->generation = generation;
        *out = request_handle(ep, r);
        submit(m, ep, r);
    } else {
        status = mr_err_set(err, MR_E_NO_MEMORY, "all %" PRId32 " requests of endpoint %" PRId32 " are in use",
                            m->config.max_requests, ch->self);
    }
    mr_mutex_unlock(&m->lock);
    return status;
}

static mr_status mpi_post_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                               mr_channel_request *out, mr_err *err) {
    /* MPI_Isend only reads the buffer, although it takes a pointer without const. */
    const request wish = {.is_send = true, .peer = peer, .tag = tag, .buffer = (void *)(uintptr_t)data, .bytes = bytes};
    return post(ch, &wish, out, err);
}

static mr_status mpi_post_recv(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                               mr_channel_request *out, mr_err *err) {
    const request wish = {.peer = peer, .tag = tag, .buffer = buffer, .bytes = capacity};
    return post(ch, &wish, out, err);
}

static mr_status request_status(const endpoint *ep, const request *r, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    if (r->status == MR_E_PROTOCOL)
        return mr_err_set(err, MR_E_PROTOCOL,
                          "%s sent a message with tag %" PRIu32 " where at most %zu bytes are taken",
                          mr_channel_peer_name(&ep->base, r->peer, name), r->tag, r->bytes);
    return r->status == MR_OK ? MR_OK : peer_lost(ep, r->peer, err);
}

static mr_status mpi_test(mr_channel *ch, mr_channel_request handle, mr_completion *out, mr_err *err) {
    endpoint *ep = endpoint_of(ch);
    mr_status status = MR_OK;
    mr_mutex_lock(&ep->mpi->lock);
    request *r = request_of(ep, handle);
    if (!r) {
        status = mr_err_set(err, MR_E_INVALID, "request 0x%" PRIx64 " of endpoint %" PRId32 " is not posted", handle,
                            ch->self);
    } else if (r->state == REQUEST_SUBMITTED || r->state == REQUEST_ACTIVE) {
        *out = (mr_completion){.done = false};
    } else {
        status = request_status(ep, r, err);
        if (status == MR_OK)
            *out = (mr_completion){.done = true, .bytes = r->message_bytes};
        if (r->state == REQUEST_DONE)
            request_free(ep, r);
    }
    mr_mutex_unlock(&ep->mpi->lock);
    return status;
}

static bool request_is_pending(const request *r) {
    return r->state == REQUEST_SUBMITTED || r->state == REQUEST_ACTIVE || r->queued;
}

/* Cancels and frees r. Waits for the owner if necessary. The lock is held. false: r is stuck and is never used
 * again. */
static bool request_withdraw(endpoint *ep, request *r) {
    mr_mpi *m = ep->mpi;
    int64_t deadline = mr_clock_now_ns() + OWNER_PATIENCE_NS;
    if (r->state == REQUEST_SUBMITTED || r->state == REQUEST_ACTIVE) {
        r->cancel = true;
        if (r->state == REQUEST_ACTIVE)
            submit(m, ep, r);
        while (!m->owner_stuck && request_is_pending(r))
            m->owner_stuck = !mr_cond_wait_until(&ep->changed, &m->lock, deadline) && request_is_pending(r);
    }
    if (r->state == REQUEST_LEFT || r->state == REQUEST_STUCK || request_is_pending(r))
        return false;
    if (r->state == REQUEST_DONE)
        request_free(ep, r);
    return true;
}

static bool mpi_cancel(mr_channel *ch, mr_channel_request handle) {
    endpoint *ep = endpoint_of(ch);
    mr_mutex_lock(&ep->mpi->lock);
    request *r = request_of(ep, handle);
    bool ours = !r || request_withdraw(ep, r);
    mr_mutex_unlock(&ep->mpi->lock);
    return ours;
}

/* Adds the request to those that use the block, unless it has ended since it was cancelled. */
static void add_user(endpoint *ep, left_block *left, request *r) {
    if (r->state == REQUEST_DONE && !r->queued) {
        request_free(ep, r);
        return;
    }
    r->left = left;
    left->n_requests++;
}

/* A block without a request is freed at once; without memory for its count, it stays. */
static void mpi_free_later(mr_channel *ch, const mr_channel_request *requests, int32_t n, void *block, size_t bytes) {
    endpoint *ep = endpoint_of(ch);
    mr_mpi *m = ep->mpi;
    left_block *left = mr_alloc(sizeof *left);
    mr_mutex_lock(&m->lock);
    m->left_bytes += bytes;
    if (left) {
        *left = (left_block){.block = block, .bytes = bytes};
        for (int32_t i = 0; i < n; i++) {
            request *r = requests[i] ? request_of(ep, requests[i]) : NULL; /* the others have been freed */
            if (r)
                add_user(ep, left, r);
        }
        if (left->n_requests == 0) {
            m->left_bytes -= bytes;
            mr_free(block);
            mr_free(left);
        }
    }
    mr_mutex_unlock(&m->lock);
}

static size_t mpi_left_bytes(mr_channel *ch) {
    mr_mpi *m = endpoint_of(ch)->mpi;
    mr_mutex_lock(&m->lock);
    size_t bytes = m->left_bytes;
    mr_mutex_unlock(&m->lock);
    return bytes;
}

static void mpi_discard(mr_channel *ch, int32_t peer, uint32_t tag, size_t most_bytes) {
    mr_mpi *m = endpoint_of(ch)->mpi;
    mr_mpi_sinks_add(m->sinks, comm_between(m, peer, ch->self), rank_of(m, peer), (int)tag, most_bytes);
}

static bool take_event(endpoint *ep) {
    mr_mutex_lock(&ep->mpi->lock);
    bool event = ep->event;
    ep->event = false;
    mr_mutex_unlock(&ep->mpi->lock);
    return event;
}

static mr_status stage_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    (void)err;
    endpoint *ep = endpoint_of(ch);
    int64_t start = mr_clock_now_ns();
    for (progress(ep->mpi); !take_event(ep); progress(ep->mpi)) {
        int64_t now = mr_clock_now_ns();
        if (now >= deadline_ns)
            break;
        relax(ep->mpi, start, now, deadline_ns);
    }
    return MR_OK;
}

static mr_status coordinator_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    (void)err;
    endpoint *ep = endpoint_of(ch);
    mr_mutex_lock(&ep->mpi->lock);
    while (!ep->event && mr_cond_wait_until(&ep->changed, &ep->mpi->lock, deadline_ns))
        continue;
    ep->event = false;
    mr_mutex_unlock(&ep->mpi->lock);
    return MR_OK;
}

static void stage_progress(mr_channel *ch) {
    progress(endpoint_of(ch)->mpi);
}

static void mpi_wake(mr_channel *ch) {
    endpoint *ep = endpoint_of(ch);
    mr_mutex_lock(&ep->mpi->lock);
    endpoint_notify(ep);
    mr_mutex_unlock(&ep->mpi->lock);
}

static void mpi_peer_gone(mr_channel *ch, int32_t peer) {
    endpoint *ep = endpoint_of(ch);
    mr_mutex_lock(&ep->mpi->lock);
    atomic_store(&ep->mpi->gone[rank_of(ep->mpi, peer)], true);
    atomic_store(&ep->mpi->news, true);
    endpoint_notify(&ep->mpi->stage);
    mr_mutex_unlock(&ep->mpi->lock);
}

static void mpi_peer_name(const mr_channel *ch, int32_t peer, char out[MR_CHANNEL_NAME_BYTES]) {
    const mr_mpi *m = ((const endpoint *)ch)->mpi;
    const char *role = is_coordinator(m, peer) ? "the coordinator, " : "";
    int rank = rank_of(m, peer);
    snprintf(out, MR_CHANNEL_NAME_BYTES, "%srank %d on %s", role, rank, m->cards[rank].host);
}

static void mpi_destroy(mr_channel *ch) {
    endpoint *ep = endpoint_of(ch);
    mr_mpi *m = ep->mpi;
    mr_mutex_lock(&m->lock);
    for (int32_t i = 0; i < m->config.max_requests; i++)
        (void)request_withdraw(ep, &ep->table[i]);
    ep->open = false;
    endpoint_notify(&m->stage); /* mr_mpi_serve may wait for the end of this channel */
    mr_mutex_unlock(&m->lock);
}

static const mr_channel_ops stage_ops = {
    .name = "mpi",
    .post_send = mpi_post_send,
    .post_recv = mpi_post_recv,
    .test = mpi_test,
    .cancel = mpi_cancel,
    .free_later = mpi_free_later,
    .left_bytes = mpi_left_bytes,
    .discard = mpi_discard,
    .wait = stage_wait,
    .progress = stage_progress,
    .wake = mpi_wake,
    .peer_gone = mpi_peer_gone,
    .peer_name = mpi_peer_name,
    .destroy = mpi_destroy,
};

static const mr_channel_ops coordinator_ops = {
    .name = "mpi coordinator",
    .post_send = mpi_post_send,
    .post_recv = mpi_post_recv,
    .test = mpi_test,
    .cancel = mpi_cancel,
    .free_later = mpi_free_later,
    .left_bytes = mpi_left_bytes,
    .discard = mpi_discard,
    .wait = coordinator_wait,
    .wake = mpi_wake,
    .peer_gone = mpi_peer_gone,
    .peer_name = mpi_peer_name,
    .destroy = mpi_destroy,
};

/* --- Start and end ----------------------------------------------------------------------------------------------- */

/* Whether the library says that it takes addresses of NVIDIA's devices. Only Open MPI and its kin can say. */
static bool takes_device_memory(void) {
#ifdef MPIX_CUDA_AWARE_SUPPORT
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
}

static mr_status endpoint_init(mr_mpi *m, endpoint *ep, int32_t self, const mr_channel_ops *ops, mr_err *err) {
    ep->base =
        (mr_channel){.ops = ops, .self = self, .n_peers = m->n_ranks + 1, .takes_device_memory = takes_device_memory()};
    ep->mpi = m;
    ep->open = true;
    ep->table = mr_alloc_array((size_t)m->config.max_requests, sizeof *ep->table);
    if (!ep->table)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRId32 " requests", m->config.max_requests);
    for (int32_t i = m->config.max_requests; i-- > 0;)
        request_free(ep, &ep->table[i]);
    return MR_OK;
}

static mr_status allocate(mr_mpi *m, mr_err *err) {
    size_t n_ranks = (size_t)m->n_ranks, n = 2 * (size_t)m->config.max_requests;
    m->cards = mr_alloc_array(n_ranks, sizeof *m->cards);
    m->lost = mr_alloc_array(n_ranks, sizeof *m->lost);
    m->gone = mr_alloc_array(n_ranks, sizeof *m->gone);
    m->doors = mr_alloc_array(n_ranks, sizeof *m->doors);
    m->active = mr_alloc_array(n, sizeof(MPI_Request));
    m->active_of = mr_alloc_array(n, sizeof(request *));
    m->done_idx = mr_alloc_array(n, sizeof *m->done_idx);
    m->done_status = mr_alloc_array(n, sizeof *m->done_status);
    if (!m->cards || !m->lost || !m->gone || !m->doors || !m->active || !m->active_of || !m->done_idx ||
        !m->done_status)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a job of %zu ranks", n_ranks);
    mr_status status = mr_mpi_sinks_create(m->n_ranks, &m->sinks, err);
    if (status == MR_OK)
        status = endpoint_init(m, &m->stage, m->rank, &stage_ops, err);
    if (status == MR_OK && m->rank == 0)
        status = endpoint_init(m, &m->coordinator, m->n_ranks, &coordinator_ops, err);
    return status;
}

static void release(mr_mpi *m) {
    mr_cond_deinit(&m->stage.changed);
    mr_cond_deinit(&m->coordinator.changed);
    mr_mutex_deinit(&m->lock);
    mr_mpi_sinks_destroy(m->sinks);
    mr_free(m->stage.table);
    mr_free(m->coordinator.table);
    mr_free(m->cards);
    mr_free(m->lost);
    mr_free(m->gone);
    mr_free(m->doors);
    mr_free(m->active);
    mr_free(m->active_of);
    mr_free(m->done_idx);
    mr_free(m->done_status);
    mr_free(m);
}

void mr_mpi_library(char out[MR_MPI_LIBRARY_BYTES]) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int len = 0;
    if (MPI_Get_library_version(text, &len) != MPI_SUCCESS)
        text[0] = 0;
    text[strcspn(text, ",\n")] = 0; /* cuts packages, dates and links */
    snprintf(out, MR_MPI_LIBRARY_BYTES, "%.*s", MR_MPI_LIBRARY_BYTES - 1, text[0] ? text : "of an unknown version");
}

/* Terminates a text of another rank, and replaces characters below `first` and those that a terminal may interpret. */
static void clean_text(char *text, size_t bytes, char first) {
    text[bytes - 1] = 0;
    for (char *t = text; *t; t++)
        *t = *t >= first && *t < 0x7f ? *t : '?';
}

/* The error if communicators cannot be made. Different releases of Open MPI may start together and then fail here with
 * an internal error, so the text names releases that differ. */
static mr_status meeting_failed(const mr_mpi *m, int code, mr_err *err) {
    mr_err failed;
    const mr_mpi_card *self = &m->config.card;
    mr_status status = mpi_failed(code, "MPI could not make its communicators", &failed);
    for (int i = 0; i < m->n_ranks; i++)
        if (m->cards[i].mpi_library[0] && strcmp(m->cards[i].mpi_library, self->mpi_library) != 0)
            return mr_err_set(err, status,
                              "%.150s; hint: rank %d on %s has %s, rank %d on %s has %s: install the same MPI library "
                              "on every host",
                              failed.text, m->rank, self->host, self->mpi_library, i, m->cards[i].host,
                              m->cards[i].mpi_library);
    return mr_err_set(err, status, "%.200s; hint: rank %d on %s has %s: is it the same on every host?", failed.text,
                      m->rank, self->host, self->mpi_library);
}

/* Exchanges cards and doors, and makes the communicators. These are the only collective calls of the program. */
static mr_status meet(mr_mpi *m, mr_err *err) {
    mr_mpi_library(m->config.card.mpi_library);
    int code = MPI_Allgather(&m->config.card, sizeof m->config.card, MPI_BYTE, m->cards, sizeof m->config.card,
                             MPI_BYTE, MPI_COMM_WORLD);
    if (code == MPI_SUCCESS)
        code = MPI_Allgather(&m->door, sizeof m->door, MPI_BYTE, m->doors, sizeof m->door, MPI_BYTE, MPI_COMM_WORLD);
    for (int i = 0; i < 4 && code == MPI_SUCCESS; i++)
        code = MPI_Comm_dup(MPI_COMM_WORLD, &m->comms[i / 2][i % 2]); /* copies the error handler, too */
    for (int i = 0; i < m->n_ranks; i++) {
        mr_mpi_card *c = &m->cards[i];
        c->lifeline[sizeof c->lifeline - 1] = 0;
        clean_text(c->host, sizeof c->host, '!');
        clean_text(c->mpi_library, sizeof c->mpi_library, ' ');
    }
    return code == MPI_SUCCESS ? MR_OK : meeting_failed(m, code, err);
}

/* Sets variables of Open MPI, unless the user has set them.
 *
 * Open MPI copies messages. When Open MPI copies, it compares the length of a message with the buffer of the receive.
 * When one process writes or reads the memory of another process, Open MPI does not compare, and a large message that
 * is too long overruns the buffer (4.1.4: shared memory with CMA, TCP with put). Measured for 16 KiB and 1 MiB between
 * two ranks of one host: shared memory 4.5 and 105 us, with CMA 15 and 136; TCP over loopback 13 and 292 us, with put 9
 * and 148.
 *
 * Open MPI does not yield the core after each look for messages, as it does where there are more ranks than cores: the
 * owner yields or sleeps itself. On a busy machine, the yields of Open MPI took most of the time: with two busy
 * processes on two cores, three ranks decoded 36 tokens of the demo model in a second, and 600 without them. */
void mr_mpi_prepare(void) {
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", false);
    setenv("OMPI_MCA_btl_tcp_flags", "send,inplace,need-ack,need-csum,hetero-rdma", false);
    setenv("OMPI_MCA_mpi_yield_when_idle", "0", false);
}

static mr_status init_mpi(mr_mpi *m, mr_err *err) {
    int provided = MPI_THREAD_SINGLE;
    mr_mpi_door before;
    mr_mpi_door_find(NULL, &before);
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    if (code != MPI_SUCCESS)
        return mpi_failed(code, "MPI does not start", err);
    if (provided < MPI_THREAD_FUNNELED)
        return mr_err_set(err, MR_E_UNSUPPORTED, "this MPI library does not allow threads beside its own");
    mr_mpi_door_find(&before, &m->door);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &m->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &m->n_ranks);
    return MR_OK;
}

mr_status mr_mpi_start(const mr_mpi_config *config, mr_mpi **out, mr_err *err) {
    mr_mpi *m = mr_alloc(sizeof *m);
    if (!m)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for MPI");
    MR_ASSERT(config->max_requests >= 1 && config->max_requests <= MAX_REQUESTS);
    m->config = *config;
    m->submitted_end = &m->submitted;
    mr_mutex_init(&m->lock);
    mr_cond_init(&m->stage.changed);
    mr_cond_init(&m->coordinator.changed);
    mr_status status = init_mpi(m, err);
    if (status == MR_OK)
        status = allocate(m, err);
    if (status == MR_OK)
        status = meet(m, err);
    if (status != MR_OK) {
        release(m);
        return status;
    }
    m->busy_ns = mr_clock_now_ns();
    *out = m;
    return MR_OK;
}

int32_t mr_mpi_rank(const mr_mpi *m) {
    return m->rank;
}

int32_t mr_mpi_n_ranks(const mr_mpi *m) {
    return m->n_ranks;
}

const mr_mpi_card *mr_mpi_card_of(const mr_mpi *m, int32_t rank) {
    return &m->cards[rank];
}

mr_channel *mr_mpi_stage_channel(mr_mpi *m) {
    return &m->stage.base;
}

mr_channel *mr_mpi_coordinator_channel(mr_mpi *m) {
    return &m->coordinator.base;
}

void mr_mpi_peer_lost(mr_mpi *m, int32_t rank) {
    mr_mutex_lock(&m->lock);
    atomic_store(&m->lost[rank], true);
    atomic_store(&m->gone[rank], true);
    atomic_store(&m->news, true);
    endpoint_notify(&m->stage);
    endpoint_notify(&m->coordinator);
    mr_mutex_unlock(&m->lock);
}

uint64_t mr_mpi_n_looks(const mr_mpi *m) {
    return atomic_load_explicit(&m->n_looks, memory_order_relaxed);
}

static bool coordinator_open(mr_mpi *m) {
    mr_mutex_lock(&m->lock);
    bool open = m->coordinator.open;
    mr_mutex_unlock(&m->lock);
    return open;
}

void mr_mpi_serve(mr_mpi *m) {
    while (coordinator_open(m))
        (void)stage_wait(&m->stage.base, MR_NEVER, NULL);
}

void mr_mpi_finish(mr_mpi *m) {
    mr_mpi_serve(m);
    take_losses(m);
    if (m->n_lost == 0) {
        for (int i = 0; i < 4; i++)
            MPI_Comm_free(&m->comms[i / 2][i % 2]);
        MPI_Finalize();
        release(m);
    }
}
