/* Accepts connections, and watches for what libmicrohttpd does not notice: clients that disconnect while they wait for
 * an answer, and clients that are slow on purpose. One thread waits for the first two with epoll, and checks the
 * deadlines. libmicrohttpd could accept connections itself. But to stop that, its threads and the caller of
 * MHD_quiesce_daemon take the socket out of the same epoll set, and the one that comes second ends the process
 * (0.9.75). */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coordinator/serving/http/http_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

enum {
    LOOK_MS = 250, /* between two checks of the deadlines */
    N_EVENTS = 64,
    BODY_BYTES_PER_S = 16384,
    MOST_AT_ONCE = 16, /* new connections, before other events are handled */
    SPARE_CONNS = 64,  /* libmicrohttpd may free a place before it reports the closed connection */
};

static const uint64_t LISTENER = UINT64_MAX; /* in place of the key of a connection */
static const int64_t HUNG_UP_NS = MR_NS_PER_S / 2;

/* --- The table of connections ------------------------------------------------------------------------------------ */

static uint64_t conn_key(const mr_http_server *s, const http_conn *c) {
    return (uint64_t)c->generation << 32 | (uint64_t)(c - s->conns);
}

/* Finds a connection; NULL: the connection has ended meanwhile. Call with the lock held. */
static http_conn *conn_of(mr_http_server *s, uint64_t key) {
    http_conn *c = &s->conns[key & UINT32_MAX];
    return c->used && c->generation == key >> 32 ? c : NULL;
}

static http_conn *begin_conn(mr_http_server *s, int fd) {
    mr_mutex_lock(&s->lock);
    http_conn *c = s->first_free >= 0 ? &s->conns[s->first_free] : NULL;
    if (c) {
        s->first_free = c->next_free;
        *c = (http_conn){.generation = c->generation + 1, .used = true, .fd = fd, .since_ns = mr_clock_now_ns()};
        struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.u64 = conn_key(s, c)};
        (void)epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd,
                        &event); /* if this fails, the next write notices the disconnect */
    }
    mr_mutex_unlock(&s->lock);
    return c;
}

static void end_conn(mr_http_server *s, http_conn *c) {
    mr_mutex_lock(&s->lock);
    (void)epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    c->used = false;
    c->next_free = s->first_free;
    s->first_free = (int32_t)(c - s->conns);
    mr_mutex_unlock(&s->lock);
}

/* --- New connections --------------------------------------------------------------------------------------------- */

/* Lock held. */
static void change_accepts(mr_http_server *s, bool accepts) {
    struct epoll_event event = {.events = accepts ? EPOLLIN : 0, .data.u64 = LISTENER};
    if (s->accepts != accepts && !atomic_load(&s->draining) &&
        epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, s->listener.fd, &event) == 0)
        s->accepts = accepts;
}

/* Accepts a connection. False: there are no more for now, or no more can be taken. Lock held. */
static bool accept_one(mr_http_server *s) {
    struct sockaddr_storage from;
    socklen_t n = sizeof from;
    if (atomic_load(&s->draining))
        return false;
    bool is_full = atomic_load(&s->n_connections) >= s->config.max_connections;
    int fd = is_full ? -1 : accept4(s->listener.fd, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (is_full || (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR))
            change_accepts(s, false); /* until a connection ends; where descriptors are short, until the next look */
        return false;
    }
    atomic_fetch_add(&s->n_connections, 1);
    if (MHD_add_connection(s->daemon, fd, (struct sockaddr *)&from, n) != MHD_YES)
        atomic_fetch_sub(&s->n_connections, 1);
    return true;
}

static void accept_some(mr_http_server *s) {
    mr_mutex_lock(&s->lock);
    for (int i = 0; i < MOST_AT_ONCE && accept_one(s); i++)
        ;
    mr_mutex_unlock(&s->lock);
}

mr_status http_watch_accept(mr_http_server *s, mr_err *err) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = LISTENER};
    mr_mutex_lock(&s->lock);
    s->accepts = epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->listener.fd, &event) == 0;
    mr_status status = s->accepts ? MR_OK : mr_err_set(err, MR_E_IO, "the listening socket: %s", strerror(errno));
    mr_mutex_unlock(&s->lock);
    return status;
}

void http_watch_accept_no_more(mr_http_server *s) {
    mr_mutex_lock(&s->lock);
    if (s->epoll_fd >= 0)
        (void)epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->listener.fd, NULL);
    s->accepts = false;
    mr_mutex_unlock(&s->lock);
}

void http_watch_connection(void *ctx, struct MHD_Connection *mhd, void **socket_ctx,
                           enum MHD_ConnectionNotificationCode code) {
    mr_http_server *s = ctx;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
        *socket_ctx = info ? begin_conn(s, info->connect_fd) : NULL;
        return;
    }
    atomic_fetch_sub(&s->n_connections, 1);
    http_head_end(s, mhd);
    if (*socket_ctx)
        end_conn(s, *socket_ctx);
    *socket_ctx = NULL;
    mr_mutex_lock(&s->lock);
    change_accepts(s, true); /* there is room */
    mr_mutex_unlock(&s->lock);
}

void http_conn_set_phase(mr_http_server *s, http_conn *c, conn_phase phase) {
    mr_mutex_lock(&s->lock);
    c->phase = phase;
    c->since_ns = mr_clock_now_ns();
    c->body_bytes = 0;
    mr_mutex_unlock(&s->lock);
}

void http_conn_add_body(mr_http_server *s, http_conn *c, size_t bytes) {
    mr_mutex_lock(&s->lock);
    c->body_bytes += bytes;
    mr_mutex_unlock(&s->lock);
}

void http_conn_set_exchange(mr_http_server *s, http_conn *c, http_exchange *x) {
    mr_mutex_lock(&s->lock);
    c->exchange = x;
    if (x)
        x->gone = c->hung_up || atomic_load(&s->stopping);
    mr_mutex_unlock(&s->lock);
}

void http_watch_cut_all(mr_http_server *s) {
    mr_mutex_lock(&s->lock);
    for (int32_t i = 0; i < s->n_conns; i++) {
        http_conn *c = &s->conns[i];
        if (c->used && c->exchange)
            http_exchange_look(c->exchange, 0, true);
        if (c->used)
            shutdown(c->fd, SHUT_RDWR);
    }
    mr_mutex_unlock(&s->lock);
}

/* --- The thread -------------------------------------------------------------------------------------------------- */

/* Whether a connection has passed its deadline. */
static bool is_late(const mr_http_server *s, const http_conn *c, int64_t now_ns) {
    int64_t limit_s = s->config.client_timeout_s;
    if (c->phase == CONN_ANSWER)
        return false;
    /* libmicrohttpd asks epoll for edges, and does not see an end that came together with bytes. A while, because these
     * bytes may be a request. */
    if (c->hung_up && now_ns - c->since_ns > HUNG_UP_NS)
        return true;
    if (c->phase == CONN_HEAD && !c->exchange && atomic_load(&s->draining))
        return true; /* its next request would not be answered */
    if (c->phase == CONN_BODY)
        limit_s += (int64_t)(c->body_bytes / BODY_BYTES_PER_S);
    return now_ns - c->since_ns > limit_s * MR_NS_PER_S;
}

static void look_at_all(mr_http_server *s) {
    int64_t now_ns = mr_clock_now_ns();
    mr_mutex_lock(&s->lock);
    change_accepts(s, true);
    for (int32_t i = 0; i < s->n_conns; i++) {
        http_conn *c = &s->conns[i];
        if (!c->used)
            continue;
        if (c->exchange)
            http_exchange_look(c->exchange, now_ns, false);
        if (is_late(s, c, now_ns))
            shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd sees the end, and closes it */
    }
    mr_mutex_unlock(&s->lock);
}

static void note_hangups(mr_http_server *s, const struct epoll_event *events, int n) {
    mr_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        http_conn *c = events[i].data.u64 == LISTENER ? NULL : conn_of(s, events[i].data.u64);
        if (!c || !(events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)))
            continue;
        c->hung_up = true;
        if (c->exchange)
            http_exchange_look(c->exchange, 0, true);
    }
    mr_mutex_unlock(&s->lock);
}

static void watch(void *ctx) {
    mr_http_server *s = ctx;
    struct epoll_event events[N_EVENTS];
    int64_t next_ns = 0;
    while (!atomic_load(&s->stopping)) {
        int n = epoll_wait(s->epoll_fd, events, N_EVENTS, LOOK_MS);
        if (n > 0)
            note_hangups(s, events, n);
        for (int i = 0; i < n; i++)
            if (events[i].data.u64 == LISTENER)
                accept_some(s);
        if (mr_clock_now_ns() < next_ns)
            continue;
        look_at_all(s);
        next_ns = mr_clock_now_ns() + LOOK_MS * MR_NS_PER_MS;
    }
}

mr_status http_watch_init(mr_http_server *s, mr_err *err) {
    s->n_conns = s->config.max_connections + SPARE_CONNS;
    s->conns = mr_alloc_array((size_t)s->n_conns, sizeof *s->conns);
    s->heads = mr_alloc_array((size_t)s->n_conns, sizeof *s->heads);
    if (!s->conns || !s->heads)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %d connections", (int)s->n_conns);
    for (int32_t i = 0; i < s->n_conns; i++)
        s->conns[i].next_free = i + 1 < s->n_conns ? i + 1 : -1;
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll_fd < 0)
        return mr_err_set(err, MR_E_IO, "epoll: %s", strerror(errno));
    return mr_thread_create("http-watch", 0, watch, s, &s->watcher, err);
}

void http_watch_deinit(mr_http_server *s) {
    mr_thread_join(s->watcher);
    s->watcher = NULL;
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    mr_free(s->conns);
    mr_free(s->heads);
}
