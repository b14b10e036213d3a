/* proto/lifeline_connect.c - the hello of a rank to rank 0. A race tries all addresses at once, and the address that
 * answers with the right proof wins. Rank 0 accepts a rank once, so at most one attempt gets an answer.
 * A connection that ends after the challenge does not say why: rank 0 may have another secret, may be starting again,
 * or may be behind a proxy that closes. So the race is run again for a while, and the error names the likely cause. */
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "proto/lifeline_internal.h"

#define SILENT_NS MR_NS_PER_S         /* a peer without an answer to the hello for this time does not run */
#define AGAIN_NS (200 * MR_NS_PER_MS) /* between two races, after a connection that ended too early */

typedef struct attempt {
    int fd;             /* -1: failed */
    int64_t greeted_ns; /* when the hello was sent; 0: not yet */
    const char *failure;
    int64_t refused_ns; /* when the connection ended after the challenge; 0: it did not */
    size_t n_heard;     /* received bytes of heard */
    uint8_t heard[LIFELINE_NONCE_BYTES + LIFELINE_PROOF_BYTES]; /* challenge and answer */
} attempt;

typedef struct race {
    const lifeline_places *places;
    const mr_secret *key;
    attempt attempts[LIFELINE_MAX_HOSTS];
    uint8_t hello[LIFELINE_HELLO_BYTES];
} race;

int lifeline_wait_ms(int64_t deadline_ns) {
    static const int64_t hour_ns = 3600 * MR_NS_PER_S;
    int64_t left = deadline_ns - mr_clock_now_ns();
    if (left <= 0)
        return 0;
    return (int)(((left < hour_ns ? left : hour_ns) + MR_NS_PER_MS - 1) / MR_NS_PER_MS);
}

void lifeline_fd_close(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void attempt_fail(attempt *a, const char *why) {
    a->failure = why;
    lifeline_fd_close(&a->fd);
}

static void attempt_start(attempt *a, const struct sockaddr_storage *host) {
    int on = 1;
    socklen_t n = host->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    a->fd = socket(host->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (a->fd < 0 || setsockopt(a->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
        (connect(a->fd, (const struct sockaddr *)host, n) != 0 && errno != EINPROGRESS))
        attempt_fail(a, strerror(errno));
}

static void attempt_greet(attempt *a, const uint8_t hello[LIFELINE_HELLO_BYTES]) {
    int error = 0;
    socklen_t n = sizeof error;
    if (getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0 || error != 0)
        attempt_fail(a, strerror(error ? error : errno));
    else if (send(a->fd, hello, LIFELINE_HELLO_BYTES, MSG_NOSIGNAL) != LIFELINE_HELLO_BYTES)
        attempt_fail(a, "the hello cannot be sent");
    else
        a->greeted_ns = mr_clock_now_ns();
}

/* Answers the challenge of rank 0. */
static void attempt_prove(attempt *a, const mr_secret *key, const uint8_t hello[LIFELINE_HELLO_BYTES]) {
    uint8_t proof[LIFELINE_PROOF_BYTES];
    lifeline_prove(key, LIFELINE_RANK, hello, a->heard, proof);
    if (send(a->fd, proof, sizeof proof, MSG_NOSIGNAL) != (ssize_t)sizeof proof)
        attempt_fail(a, "the proof cannot be sent");
}

/* Reads the challenge and the answer. True: the whole answer has come and is right. */
static bool attempt_read(attempt *a, const mr_secret *key, const uint8_t hello[LIFELINE_HELLO_BYTES]) {
    size_t most = a->n_heard < LIFELINE_NONCE_BYTES ? LIFELINE_NONCE_BYTES : sizeof a->heard;
    ssize_t n = recv(a->fd, a->heard + a->n_heard, most - a->n_heard, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        a->refused_ns = a->n_heard >= LIFELINE_NONCE_BYTES ? mr_clock_now_ns() : 0;
        attempt_fail(a, a->refused_ns ? "closed after our proof" : "closed after our hello");
        return false;
    }
    a->n_heard += (size_t)n;
    if (a->n_heard == LIFELINE_NONCE_BYTES)
        attempt_prove(a, key, hello);
    if (a->n_heard < sizeof a->heard)
        return false;
    if (lifeline_proves(key, LIFELINE_RANK_0, hello, a->heard, a->heard + LIFELINE_NONCE_BYTES))
        return true;
    attempt_fail(a, "is not our rank 0");
    return false;
}

/* Waits for events and handles them. *out_fd: the socket of the winner, moved out of its attempt. False: no attempt is
 * left. */
static bool race_step(race *r, int64_t deadline_ns, int *out_fd) {
    struct pollfd polls[LIFELINE_MAX_HOSTS];
    int n_hosts = r->places->n_hosts, n_open = 0;
    for (int i = 0; i < n_hosts; i++) {
        const attempt *a = &r->attempts[i];
        polls[i] = (struct pollfd){.fd = a->fd, .events = a->greeted_ns ? POLLIN : POLLOUT};
        n_open += a->fd >= 0;
    }
    if (n_open == 0)
        return false;
    if (poll(polls, (nfds_t)n_hosts, lifeline_wait_ms(deadline_ns)) <= 0)
        return true;
    for (int i = 0; i < n_hosts && *out_fd < 0; i++) {
        attempt *a = &r->attempts[i];
        if (!polls[i].revents)
            continue;
        if (!a->greeted_ns) {
            attempt_greet(a, r->hello);
        } else if (attempt_read(a, r->key, r->hello)) {
            *out_fd = a->fd;
            a->fd = -1;
        }
    }
    return true;
}

static void host_name(const struct sockaddr_storage *host, char *out, size_t bytes) {
    char ip[INET6_ADDRSTRLEN] = "?";
    if (host->ss_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)host;
        inet_ntop(AF_INET6, &a->sin6_addr, ip, sizeof ip);
        snprintf(out, bytes, "[%s]:%d", ip, ntohs(a->sin6_port));
    } else {
        const struct sockaddr_in *a = (const struct sockaddr_in *)host;
        inet_ntop(AF_INET, &a->sin_addr, ip, sizeof ip);
        snprintf(out, bytes, "%s:%d", ip, ntohs(a->sin_port));
    }
}

/* Whether a peer that has received the hello has been silent for SILENT_NS. */
static bool is_silent(const race *r, int64_t now_ns) {
    bool found = false;
    for (int i = 0; i < r->places->n_hosts; i++)
        found |= r->attempts[i].fd >= 0 && r->attempts[i].greeted_ns && now_ns - r->attempts[i].greeted_ns > SILENT_NS;
    return found;
}

/* The peer that closed after the proof, if no other was rank 0. */
static const struct sockaddr_storage *find_refusal(const race *r) {
    const struct sockaddr_storage *found = NULL;
    for (int i = 0; i < r->places->n_hosts; i++)
        if (r->attempts[i].refused_ns)
            found = &r->places->hosts[i];
    return found;
}

/* When the race ends without a winner. After a refusal, other addresses have SILENT_NS to begin an answer: packets to
 * some of them may get lost, and the next race may be let in. */
static int64_t race_end(const race *r, int64_t deadline_ns) {
    int64_t end_ns = deadline_ns;
    for (int i = 0; i < r->places->n_hosts; i++) {
        const attempt *a = &r->attempts[i];
        if (a->fd >= 0 && a->n_heard > 0)
            return deadline_ns;
        if (a->refused_ns && a->refused_ns + SILENT_NS < end_ns)
            end_ns = a->refused_ns + SILENT_NS;
    }
    return end_ns;
}

static mr_status refusal_error(const struct sockaddr_storage *host, mr_err *err) {
    char name[64];
    host_name(host, name, sizeof name);
    return mr_err_set(err, MR_E_UNAVAILABLE,
                      "rank 0 at %s closes the connection of this process before it is let in, probably because its "
                      "launch secret is another one; hint: MILLRACE_SECRET or MILLRACE_SECRET_FILE has to reach every "
                      "rank (mpirun -x); if it does, look for a proxy between the hosts",
                      name);
}

/* The error with the result of each address, as many as fit the text. */
static mr_status race_error(const race *r, mr_status status, mr_err *err) {
    char text[MR_ERR_TEXT_BYTES - 160] = "", name[64];
    size_t n = 0;
    for (int i = 0; i < r->places->n_hosts && n < sizeof text; i++) {
        const attempt *a = &r->attempts[i];
        host_name(&r->places->hosts[i], name, sizeof name);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s (%s)", i ? ", " : "", name,
                              a->failure ? a->failure : "no answer");
    }
    return mr_err_set(err, status,
                      "no lifeline to rank 0 at %s; hint: the hosts of a job need TCP connections to each other, look "
                      "for a firewall between them",
                      text);
}

static mr_status race_once(const lifeline_places *places, const mr_secret *key, int32_t self_rank, int64_t deadline_ns,
                           int *out_fd, mr_err *err) {
    race r = {.places = places, .key = key};
    uint8_t nonce[LIFELINE_NONCE_BYTES];
    int fd = -1;
    mr_status status = lifeline_random(nonce, sizeof nonce, err);
    if (status != MR_OK)
        return status;
    lifeline_hello_write(self_rank, nonce, r.hello);
    for (int i = 0; i < places->n_hosts; i++)
        attempt_start(&r.attempts[i], &places->hosts[i]);
    while (fd < 0 && status == MR_OK) {
        int64_t end_ns = race_end(&r, deadline_ns);
        bool is_open = race_step(&r, end_ns, &fd);
        if (is_open && (fd >= 0 || mr_clock_now_ns() < end_ns))
            continue;
        if (find_refusal(&r))
            status = refusal_error(find_refusal(&r), err);
        else if (!is_open)
            status = race_error(&r, MR_E_IO, err);
        else
            status = race_error(&r, is_silent(&r, mr_clock_now_ns()) ? MR_E_PEER_LOST : MR_E_TIMEOUT, err);
    }
    for (int i = 0; i < places->n_hosts; i++)
        lifeline_fd_close(&r.attempts[i].fd);
    if (status == MR_OK)
        *out_fd = fd;
    return status;
}

mr_status lifeline_race(const lifeline_places *places, const mr_secret *key, int32_t self_rank,
                        const lifeline_limits *limits, int *out_fd, mr_err *err) {
    for (;;) {
        mr_status status = race_once(places, key, self_rank, limits->deadline_ns, out_fd, err);
        int64_t next_ns = mr_clock_now_ns() + AGAIN_NS;
        if (status != MR_E_UNAVAILABLE || next_ns >= limits->refused_until_ns || next_ns >= limits->deadline_ns)
            return status;
        (void)nanosleep(&(struct timespec){.tv_nsec = AGAIN_NS}, NULL);
    }
}
