/* proto/lifeline_connect.c - the hello of a rank to rank 0. A race tries all addresses at once, and the address that
 * answers with the right proof wins. Rank 0 accepts a rank once, so at most one attempt gets an answer. */
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "proto/lifeline_internal.h"

#define SILENT_NS MR_NS_PER_S /* a peer without an answer to the hello for this time does not run */

typedef struct attempt {
    int fd;             /* -1: failed */
    int64_t greeted_ns; /* when the hello was sent; 0: not yet */
    const char *failure;
    size_t n_answer; /* received bytes of answer */
    uint8_t answer[LIFELINE_ANSWER_BYTES];
} attempt;

typedef struct race {
    const lifeline_places *places;
    attempt attempts[LIFELINE_MAX_HOSTS];
    uint8_t hello[LIFELINE_HELLO_BYTES];
} race;

/* Compares in constant time, so that the time does not tell where the first difference is. */
static bool same_bytes(const uint8_t *a, const uint8_t *b, size_t n) {
    volatile uint8_t differ = 0;
    for (size_t i = 0; i < n; i++)
        differ |= a[i] ^ b[i];
    return differ == 0;
}

void lifeline_answer_write(const uint8_t *token, uint8_t out_answer[LIFELINE_ANSWER_BYTES]) {
    memcpy(out_answer, LIFELINE_MAGIC, LIFELINE_MAGIC_BYTES);
    memcpy(out_answer + LIFELINE_MAGIC_BYTES, token + LIFELINE_PROOF_BYTES, LIFELINE_PROOF_BYTES);
}

bool lifeline_answer_check(const uint8_t *token, const uint8_t answer[LIFELINE_ANSWER_BYTES]) {
    uint8_t right[LIFELINE_ANSWER_BYTES];
    lifeline_answer_write(token, right);
    return same_bytes(answer, right, sizeof right);
}

void lifeline_hello_write(const uint8_t *token, int32_t rank, uint8_t out_hello[LIFELINE_HELLO_BYTES]) {
    memcpy(out_hello, LIFELINE_MAGIC, LIFELINE_MAGIC_BYTES);
    memcpy(out_hello + LIFELINE_MAGIC_BYTES, token, LIFELINE_PROOF_BYTES);
    for (int i = 0; i < 4; i++)
        out_hello[LIFELINE_MAGIC_BYTES + LIFELINE_PROOF_BYTES + i] = (uint8_t)((uint32_t)rank >> 8 * i);
}

int32_t lifeline_hello_read(const uint8_t *token, const uint8_t hello[LIFELINE_HELLO_BYTES], int32_t n_ranks) {
    uint8_t right[LIFELINE_HELLO_BYTES];
    uint32_t rank = 0;
    for (int i = 4; i-- > 0;)
        rank = rank << 8 | hello[LIFELINE_MAGIC_BYTES + LIFELINE_PROOF_BYTES + i];
    lifeline_hello_write(token, 0, right);
    if (!same_bytes(hello, right, LIFELINE_MAGIC_BYTES + LIFELINE_PROOF_BYTES))
        return -1;
    return rank >= 1 && rank < (uint32_t)n_ranks ? (int32_t)rank : -1;
}

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

/* Reads the answer. True: the whole answer has come and is right. */
static bool attempt_read(attempt *a, const uint8_t *token) {
    ssize_t n = recv(a->fd, a->answer + a->n_answer, sizeof a->answer - a->n_answer, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        attempt_fail(a, "refused our hello");
        return false;
    }
    a->n_answer += (size_t)n;
    if (a->n_answer < sizeof a->answer)
        return false;
    if (lifeline_answer_check(token, a->answer))
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
        } else if (attempt_read(a, r->places->token)) {
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

mr_status lifeline_race(const lifeline_places *places, int32_t self_rank, int64_t deadline_ns, int *out_fd,
                        mr_err *err) {
    race r = {.places = places};
    mr_status status = MR_OK;
    int fd = -1;
    lifeline_hello_write(places->token, self_rank, r.hello);
    for (int i = 0; i < places->n_hosts; i++)
        attempt_start(&r.attempts[i], &places->hosts[i]);
    while (fd < 0 && status == MR_OK) {
        if (!race_step(&r, deadline_ns, &fd))
            status = race_error(&r, MR_E_IO, err);
        else if (fd < 0 && mr_clock_now_ns() >= deadline_ns)
            status = race_error(&r, is_silent(&r, mr_clock_now_ns()) ? MR_E_PEER_LOST : MR_E_TIMEOUT, err);
    }
    for (int i = 0; i < places->n_hosts; i++)
        lifeline_fd_close(&r.attempts[i].fd);
    if (status == MR_OK)
        *out_fd = fd;
    return status;
}
