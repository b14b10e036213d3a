/* proto/lifeline.c - the connections of a lifeline and the thread that watches them.
 * poll() wakes the thread when a connection ends, but not when a byte comes. The thread reads all bytes once in a beat
 * and sends its own sign of life then. So the cost is two wake-ups a second, whatever the peers do. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "proto/lifeline_internal.h"
#include "proto/limits.h"

enum {
    MAX_STRANGERS = 64, /* most connections without a hello, in addition to one for each missing rank */
    PENDING = -1,       /* the rank of a connection without a hello */
    READ_BYTES = 256,   /* bytes read from one peer at a time; some ten bytes are normal after a pause */
    WHY_BYTES = 128,
};

#define BEAT_NS (500 * MR_NS_PER_MS)
#define SILENT_BEATS 9 /* whole beats: a peer is lost in the tenth beat at the latest */
#define GOODBYE_NS (500 * MR_NS_PER_MS)

static const uint8_t ALIVE = 'h', HANGS = 's', GOODBYE = 'b';

typedef struct conn {
    int fd;       /* -1: this entry is free */
    int32_t rank; /* rank of the peer, or PENDING */
    int32_t silent_beats;
    int64_t heard_ns; /* when the last sign of life came */
    short revents;
    uint8_t n_heard;                                            /* received bytes of heard */
    uint8_t heard[LIFELINE_HELLO_BYTES + LIFELINE_PROOF_BYTES]; /* hello and proof, while the rank is PENDING */
    uint8_t challenge[LIFELINE_NONCE_BYTES];
} conn;

struct mr_lifeline {
    lifeline_config config;
    mr_thread *thread;
    int stop_fd;
    int listen_fd;       /* -1: all ranks have connected, or this is not rank 0 */
    bool has_refused;    /* a wrong proof was logged */
    bool accepts_paused; /* no accepts until the next beat, because the system has no descriptor left */
    int32_t n_ranks;
    int32_t n_missing; /* ranks that have not connected yet */
    atomic_bool *seen; /* [n_ranks]: the rank has connected; written by the own thread, read by any thread */
    int64_t next_beat_ns;
    int32_t n_conns;
    conn *conns;          /* [n_conns] */
    struct pollfd *polls; /* [2 + n_conns] */
    uint8_t token[LIFELINE_TOKEN_BYTES];
    mr_secret key;   /* of the proofs */
    mr_secret plane; /* mr_lifeline_secret */
    char address[MR_LIFELINE_ADDRESS_BYTES];
};

static void conn_lose(mr_lifeline *l, conn *c, const char *why) {
    lifeline_fd_close(&c->fd);
    l->config.lost(l->config.ctx, c->rank, why, mr_clock_now_ns() - c->heard_ns);
}

/* The process of the peer may go on later. A goodbye from rank 0 lets it end quietly then. */
static void conn_give_up(mr_lifeline *l, conn *c, const char *why) {
    if (c->rank != 0)
        (void)send(c->fd, &GOODBYE, 1, MSG_NOSIGNAL);
    conn_lose(l, c, why);
}

static void conn_lose_silent(mr_lifeline *l, conn *c) {
    char why[WHY_BYTES];
    snprintf(why, sizeof why, "no sign of life for %g s",
             (double)l->config.beat_ns * (l->config.silent_beats + 1) / (double)MR_NS_PER_S);
    conn_give_up(l, c, why);
}

/* The kernel of a living host acknowledges signs of life at once, even where the process is stopped or its cores are
 * busy. So a host or a network that is gone shows much earlier than a process that says nothing. */
static void conn_watch_host(int fd) {
    unsigned limit_ms = LIFELINE_ANSWER_MS;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

static void conn_lose_error(mr_lifeline *l, conn *c, int error) {
    char why[WHY_BYTES] = "its connection closed"; /* a reset too: the dead process had not read all bytes */
    if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH)
        snprintf(why, sizeof why, "its host has not answered for %g s", LIFELINE_ANSWER_MS / 1e3);
    else if (error != ECONNRESET && error != EPIPE)
        snprintf(why, sizeof why, "its connection failed: %s", strerror(error));
    conn_lose(l, c, why);
}

/* Reads the bytes of a peer. Only one read, so that a peer that sends too much does not keep the thread busy. */
static void peer_read(mr_lifeline *l, conn *c) {
    uint8_t bytes[READ_BYTES];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0) {
        conn_lose_error(l, c, errno);
        return;
    }
    if (n == 0) {
        conn_lose(l, c, "its connection closed");
        return;
    }
    c->silent_beats = 0;
    c->heard_ns = mr_clock_now_ns();
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] == GOODBYE) {
            conn_lose(l, c, NULL);
            return;
        }
        if (bytes[i] == HANGS) {
            conn_give_up(l, c, "its step thread hangs");
            return;
        }
        if (bytes[i] != ALIVE) {
            conn_lose(l, c, "it sent something malformed");
            return;
        }
    }
}

/* Stops listening and closes all connections without a hello. */
static void door_close(mr_lifeline *l) {
    lifeline_fd_close(&l->listen_fd);
    for (int32_t i = 0; i < l->n_conns; i++)
        if (l->conns[i].rank == PENDING)
            lifeline_fd_close(&l->conns[i].fd);
}

/* Answers a complete hello with a challenge, or closes the connection. */
static void pending_challenge(mr_lifeline *l, conn *c) {
    mr_err ignored;
    if (lifeline_hello_read(c->heard, l->n_ranks) < 0 ||
        lifeline_random(c->challenge, sizeof c->challenge, &ignored) != MR_OK ||
        send(c->fd, c->challenge, sizeof c->challenge, MSG_NOSIGNAL) != (ssize_t)sizeof c->challenge)
        lifeline_fd_close(&c->fd);
}

/* Closes a connection whose proof is wrong. Only the first one is logged: strangers may come without end. */
static void pending_refuse(mr_lifeline *l, conn *c, int32_t rank) {
    if (!l->has_refused)
        mr_log_write(MR_LOG_WARN, "lifeline",
                     "a connection that calls itself rank %" PRId32 " was refused: it does not know the launch secret; "
                     "hint: MILLRACE_SECRET or MILLRACE_SECRET_FILE has to reach every rank (mpirun -x)",
                     rank);
    l->has_refused = true;
    lifeline_fd_close(&c->fd);
}

/* Checks a complete proof. The connection becomes that of a peer, or is closed. */
static void pending_admit(mr_lifeline *l, conn *c) {
    uint8_t answer[LIFELINE_PROOF_BYTES];
    int32_t rank = lifeline_hello_read(c->heard, l->n_ranks);
    if (!lifeline_proves(&l->key, LIFELINE_RANK, c->heard, c->challenge, c->heard + LIFELINE_HELLO_BYTES)) {
        pending_refuse(l, c, rank);
        return;
    }
    lifeline_prove(&l->key, LIFELINE_RANK_0, c->heard, c->challenge, answer);
    if (l->seen[rank] || send(c->fd, answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer) {
        lifeline_fd_close(&c->fd);
        return;
    }
    conn_watch_host(c->fd);
    c->rank = rank;
    c->silent_beats = 0;
    c->heard_ns = mr_clock_now_ns();
    l->seen[rank] = true;
    if (--l->n_missing == 0)
        door_close(l);
}

static void pending_read(mr_lifeline *l, conn *c) {
    size_t most = c->n_heard < LIFELINE_HELLO_BYTES ? LIFELINE_HELLO_BYTES : sizeof c->heard;
    ssize_t n = recv(c->fd, c->heard + c->n_heard, most - c->n_heard, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        lifeline_fd_close(&c->fd);
        return;
    }
    c->n_heard = (uint8_t)(c->n_heard + n);
    if (c->n_heard == LIFELINE_HELLO_BYTES)
        pending_challenge(l, c);
    else if (c->n_heard == sizeof c->heard)
        pending_admit(l, c);
}

static conn *conn_free_place(mr_lifeline *l) {
    for (int32_t i = 0; i < l->n_conns; i++)
        if (l->conns[i].fd < 0)
            return &l->conns[i];
    return NULL;
}

/* Accepts connections while there is a free entry. Further connections wait in the queue of the system. */
static void door_answer(mr_lifeline *l) {
    int on = 1;
    for (conn *c = conn_free_place(l); c; c = conn_free_place(l)) {
        int fd = accept4(l->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
            l->accepts_paused = true;
            mr_log_write(MR_LOG_WARN, "lifeline", "a connection cannot be accepted now: %s", strerror(errno));
        }
        if (fd < 0)
            return;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        *c = (conn){.fd = fd, .rank = PENDING};
    }
}

/* One beat: reads from every peer, drops the silent peers, and sends a sign of life to the others. */
static void lifeline_beat(mr_lifeline *l) {
    bool hangs = l->config.hangs && l->config.hangs(l->config.ctx);
    for (int32_t i = 0; i < l->n_conns; i++) {
        conn *c = &l->conns[i];
        if (c->fd < 0)
            continue;
        c->silent_beats++;
        if (c->rank != PENDING)
            peer_read(l, c);
        if (c->fd < 0)
            continue;
        if (c->silent_beats <= l->config.silent_beats) {
            if (c->rank != PENDING) /* if the send fails, poll reports it */
                (void)send(c->fd, hangs ? &HANGS : &ALIVE, 1, MSG_NOSIGNAL);
        } else if (c->rank == PENDING) {
            lifeline_fd_close(&c->fd);
        } else {
            conn_lose_silent(l, c);
        }
    }
    l->accepts_paused = false;
    l->next_beat_ns = mr_clock_now_ns() + l->config.beat_ns;
}

/* Appends the open connections to polls, which has n entries. Returns the new number of entries. */
static int conns_watch(mr_lifeline *l, int n) {
    for (int32_t i = 0; i < l->n_conns; i++)
        if (l->conns[i].fd >= 0)
            l->polls[n++] =
                (struct pollfd){.fd = l->conns[i].fd, .events = l->conns[i].rank == PENDING ? POLLIN : POLLRDHUP};
    return n;
}

/* Copies the events of poll back to the connections, in the order of conns_watch. */
static void conns_take_events(mr_lifeline *l, int n) {
    for (int32_t i = 0; i < l->n_conns; i++)
        l->conns[i].revents = l->conns[i].fd >= 0 ? l->polls[n++].revents : 0;
}

/* Sleeps until an event or the next beat. The events are left in the connections. False: the lifeline is to stop. */
static bool lifeline_sleep(mr_lifeline *l) {
    bool listens = l->listen_fd >= 0 && !l->accepts_paused && conn_free_place(l);
    l->polls[0] = (struct pollfd){.fd = l->stop_fd, .events = POLLIN};
    l->polls[1] = (struct pollfd){.fd = listens ? l->listen_fd : -1, .events = POLLIN};
    int n = conns_watch(l, 2);
    int timeout_ms = n > 2 || l->accepts_paused ? lifeline_wait_ms(l->next_beat_ns) : -1;
    if (poll(l->polls, (nfds_t)n, timeout_ms) < 0) {
        for (int i = 0; i < n; i++)
            l->polls[i].revents = 0;
        if (errno != EINTR) /* no memory for a long list: the next beat finds the connections that have ended */
            (void)poll(l->polls, 1, (int)(l->config.beat_ns / MR_NS_PER_MS));
    }
    conns_take_events(l, 2);
    return l->polls[0].revents == 0;
}

/* Sends a goodbye and waits until the peers have closed their ends, too. If this process closed earlier, the next sign
 * of life of a peer could be answered with a reset that overtakes the goodbye. */
static void lifeline_part(mr_lifeline *l) {
    int64_t deadline_ns = mr_clock_now_ns() + GOODBYE_NS;
    int n;
    door_close(l);
    for (int32_t i = 0; i < l->n_conns; i++) {
        if (l->conns[i].fd < 0)
            continue;
        (void)send(l->conns[i].fd, &GOODBYE, 1, MSG_NOSIGNAL);
        (void)shutdown(l->conns[i].fd, SHUT_WR);
    }
    while ((n = conns_watch(l, 0)) > 0 && poll(l->polls, (nfds_t)n, lifeline_wait_ms(deadline_ns)) > 0) {
        conns_take_events(l, 0);
        for (int32_t i = 0; i < l->n_conns; i++)
            if (l->conns[i].revents)
                lifeline_fd_close(&l->conns[i].fd);
    }
}

static void lifeline_run(void *ctx) {
    mr_lifeline *l = ctx;
    l->next_beat_ns = mr_clock_now_ns() + l->config.beat_ns;
    while (lifeline_sleep(l)) {
        for (int32_t i = 0; i < l->n_conns; i++) {
            conn *c = &l->conns[i];
            if (!c->revents || c->fd < 0)
                continue;
            if (c->rank == PENDING)
                pending_read(l, c);
            else
                peer_read(l, c);
        }
        if (l->listen_fd >= 0 && l->polls[1].revents)
            door_answer(l);
        if (mr_clock_now_ns() >= l->next_beat_ns)
            lifeline_beat(l);
    }
    lifeline_part(l);
}

static void lifeline_destroy(mr_lifeline *l) {
    if (!l)
        return;
    for (int32_t i = 0; l->conns && i < l->n_conns; i++)
        lifeline_fd_close(&l->conns[i].fd);
    lifeline_fd_close(&l->listen_fd);
    lifeline_fd_close(&l->stop_fd);
    mr_free(l->conns);
    mr_free(l->polls);
    mr_free(l->seen);
    mr_free(l);
}

static mr_status lifeline_create(int32_t n_ranks, int32_t n_conns, const lifeline_config *config, mr_lifeline **out,
                                 mr_err *err) {
    mr_status status = MR_OK;
    mr_lifeline *l = mr_alloc(sizeof *l);
    if (!l)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a lifeline");
    l->config = *config;
    l->n_ranks = n_ranks;
    l->n_missing = n_ranks - 1;
    l->listen_fd = -1;
    l->n_conns = n_conns;
    l->seen = mr_alloc_array((size_t)n_ranks, sizeof *l->seen);
    l->conns = mr_alloc_array((size_t)n_conns, sizeof *l->conns);
    l->polls = mr_alloc_array((size_t)n_conns + 2, sizeof *l->polls);
    for (int32_t i = 0; l->conns && i < n_conns; i++)
        l->conns[i].fd = -1;
    l->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->stop_fd < 0)
        status = mr_err_set(err, MR_E_IO, "no eventfd for a lifeline: %s", strerror(errno));
    else if (!l->seen || !l->conns || !l->polls)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a lifeline of %" PRId32 " ranks", n_ranks);
    if (status == MR_OK)
        *out = l;
    else
        lifeline_destroy(l);
    return status;
}

/* Listens on an ephemeral port of all interfaces. -1 and errno: for example, the system does not have this family. */
static int door_open(int family, uint16_t *out_port) {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr *a = family == AF_INET6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4;
    socklen_t n = family == AF_INET6 ? sizeof v6 : sizeof v4;
    int off = 0;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if ((family == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) ||
        bind(fd, a, n) != 0 || listen(fd, SOMAXCONN) != 0 || getsockname(fd, a, &n) != 0) {
        int error = errno;
        lifeline_fd_close(&fd);
        errno = error;
        return -1;
    }
    *out_port = ntohs(family == AF_INET6 ? v6.sin6_port : v4.sin_port);
    return fd;
}

/* The keys follow from the secret and the token. */
static void lifeline_derive(mr_lifeline *l) {
    const mr_secret none = {0};
    l->key = lifeline_key(l->config.secret, l->token);
    l->plane =
        mr_secret_derive(l->config.secret ? l->config.secret : &none, "millrace plane", l->token, sizeof l->token);
    l->config.secret = NULL;
}

static mr_status lifeline_open(mr_lifeline *l, mr_err *err) {
    uint16_t port = 0;
    int family = AF_INET6;
    l->listen_fd = door_open(AF_INET6, &port);
    if (l->listen_fd < 0) {
        family = AF_INET;
        l->listen_fd = door_open(AF_INET, &port);
    }
    if (l->listen_fd < 0)
        return mr_err_set(err, MR_E_IO, "no port to listen on for the lifelines of the ranks: %s", strerror(errno));
    mr_status status = lifeline_random(l->token, sizeof l->token, err);
    if (status != MR_OK)
        return status;
    lifeline_derive(l);
    return lifeline_address_write(l->token, family, port, l->address, err);
}

/* Starts the thread if status is MR_OK; otherwise destroys l and returns status. */
static mr_status lifeline_start(mr_status status, mr_lifeline *l, mr_lifeline **out, mr_err *err) {
    if (status == MR_OK)
        status = mr_thread_create("mr-lifeline", 0, lifeline_run, l, &l->thread, err);
    if (status == MR_OK)
        *out = l;
    else
        lifeline_destroy(l);
    return status;
}

mr_status lifeline_listen(int32_t n_ranks, const lifeline_config *config, mr_lifeline **out, mr_err *err) {
    mr_lifeline *l = NULL;
    if (n_ranks < 1 || n_ranks > MR_MAX_STAGES)
        return mr_err_set(err, MR_E_INVALID, "a lifeline for %" PRId32 " ranks (1 to %d)", n_ranks, MR_MAX_STAGES);
    mr_status status = lifeline_create(n_ranks, n_ranks + MAX_STRANGERS, config, &l, err);
    if (status == MR_OK)
        status = lifeline_open(l, err);
    return lifeline_start(status, l, out, err);
}

mr_status lifeline_connect(const char *address, int32_t self_rank, int64_t deadline_ns, const lifeline_config *config,
                           mr_lifeline **out, mr_err *err) {
    lifeline_places places;
    mr_lifeline *l = NULL;
    if (self_rank < 1 || self_rank >= MR_MAX_STAGES)
        return mr_err_set(err, MR_E_INVALID, "rank %" PRId32 " has no lifeline (1 to %d)", self_rank,
                          MR_MAX_STAGES - 1);
    mr_status status = lifeline_address_read(address, &places, err);
    if (status == MR_OK)
        status = lifeline_create(1, 1, config, &l, err);
    if (status == MR_OK) {
        memcpy(l->token, places.token, sizeof l->token);
        lifeline_derive(l);
        const lifeline_limits limits = {.deadline_ns = deadline_ns, .refused_until_ns = config->refused_until_ns};
        status = lifeline_race(&places, &l->key, self_rank, &limits, &l->conns[0].fd, err);
    }
    if (status == MR_OK) {
        conn_watch_host(l->conns[0].fd);
        l->conns[0].heard_ns = mr_clock_now_ns();
    }
    return lifeline_start(status, l, out, err);
}

mr_status mr_lifeline_listen(int32_t n_ranks, const mr_secret *secret, mr_lifeline_lost *lost, void *ctx,
                             mr_lifeline **out, mr_err *err) {
    const lifeline_config config = {
        .lost = lost, .ctx = ctx, .secret = secret, .beat_ns = BEAT_NS, .silent_beats = SILENT_BEATS};
    return lifeline_listen(n_ranks, &config, out, err);
}

mr_status mr_lifeline_connect(const mr_lifeline_wish *wish, const char *address, int64_t deadline_ns, mr_lifeline **out,
                              mr_err *err) {
    const lifeline_config config = {.lost = wish->lost,
                                    .hangs = wish->hangs,
                                    .ctx = wish->ctx,
                                    .secret = wish->secret,
                                    .refused_until_ns = wish->refused_until_ns,
                                    .beat_ns = BEAT_NS,
                                    .silent_beats = SILENT_BEATS};
    return lifeline_connect(address, wish->self_rank, deadline_ns, &config, out, err);
}

mr_secret mr_lifeline_secret(const mr_lifeline *l) {
    return l->plane;
}

const char *mr_lifeline_address(const mr_lifeline *l) {
    return l->address;
}

int32_t mr_lifeline_n_missing(const mr_lifeline *l, int32_t *out_first) {
    int32_t n = 0;
    for (int32_t i = l->n_ranks - 1; i > 0; i--) {
        if (atomic_load(&l->seen[i]))
            continue;
        *out_first = i;
        n++;
    }
    return n;
}

void mr_lifeline_close(mr_lifeline *l) {
    uint64_t one = 1;
    if (!l)
        return;
    MR_ASSERT(write(l->stop_fd, &one, sizeof one) == (ssize_t)sizeof one);
    mr_thread_join(l->thread);
    lifeline_destroy(l);
}
