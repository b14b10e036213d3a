// SPDX-License-Identifier: Apache-2.0
/* Lifelines between processes. Each child process is this program again with a role as its first argument, and
 * shares nothing with the test but a socket as its input and output. */

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "proto/lifeline_internal.h"
#include "proto/limits.h"
#include "tests/support/test.h"
#include "tests/support/test_log.h"

#define PATIENCE_NS (20 * MR_NS_PER_S)

/* SLOW: no heartbeat during a test, so that only events of the sockets count. PATIENT: silence is never a loss, even on
 * a busy machine. STRICT: silence of 0.2 s is a loss. */
typedef enum pace { SLOW, PATIENT, STRICT } pace;

enum { MAX_LOSSES = 16 };

/* The events that the lifeline of this process has reported. */
typedef struct losses {
    mr_mutex lock;
    mr_cond changed;
    int n;
    atomic_bool is_hung;
    int32_t ranks[MAX_LOSSES];
    char whys[MAX_LOSSES][64];
    int64_t silent_ns[MAX_LOSSES];
} losses;

static void note_loss(void *ctx, int32_t rank, const char *why, int64_t silent_ns) {
    if (!why)
        return; /* the client said goodbye */
    losses *seen = ctx;
    mr_mutex_lock(&seen->lock);
    if (seen->n < MAX_LOSSES) {
        seen->ranks[seen->n] = rank;
        seen->silent_ns[seen->n] = silent_ns;
        snprintf(seen->whys[seen->n], sizeof seen->whys[0], "%s", why);
    }
    seen->n++;
    mr_cond_broadcast(&seen->changed);
    mr_mutex_unlock(&seen->lock);
}

static int losses_wait(losses *seen, int n, int64_t for_ns) {
    int64_t deadline_ns = mr_clock_now_ns() + for_ns;
    mr_mutex_lock(&seen->lock);
    while (seen->n < n && mr_cond_wait_until(&seen->changed, &seen->lock, deadline_ns))
        ;
    n = seen->n;
    mr_mutex_unlock(&seen->lock);
    return n;
}

static void losses_init(losses *seen) {
    memset(seen, 0, sizeof *seen);
    mr_mutex_init(&seen->lock);
    mr_cond_init(&seen->changed);
}

static int n_open_fds(void) {
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static int fds_before;

static int setup(void **state) {
    static losses seen;
    losses_init(&seen);
    *state = &seen;
    fds_before = n_open_fds();
    return 0;
}

/* Every test closes what it opened. */
static int teardown(void **state) {
    losses *seen = *state;
    mr_cond_deinit(&seen->changed);
    mr_mutex_deinit(&seen->lock);
    mr_mem_fail_at(-1);
    return n_open_fds() == fds_before ? 0 : -1;
}

static lifeline_config config_of(losses *seen, pace at) {
    return (lifeline_config){.lost = note_loss,
                             .ctx = seen,
                             .beat_ns = at == SLOW ? 100 * MR_NS_PER_S : 20 * MR_NS_PER_MS,
                             .silent_beats = at == STRICT ? 9 : 1000};
}

static mr_lifeline *listen_for(int32_t n_ranks, losses *seen, pace at) {
    lifeline_config config = config_of(seen, at);
    mr_lifeline *l = NULL;
    mr_err err = {0};
    expect_ok(lifeline_listen(n_ranks, &config, &l, &err), &err);
    return l;
}

static mr_lifeline *connect_as(const char *address, int32_t rank, losses *seen, pace at) {
    lifeline_config config = config_of(seen, at);
    mr_lifeline *l = NULL;
    mr_err err = {0};
    expect_ok(lifeline_connect(address, rank, mr_clock_now_ns() + PATIENCE_NS, &config, &l, &err), &err);
    return l;
}

/* --- other processes --- */

typedef struct process {
    pid_t pid;
    int fd; /* standard input and output of the process */
} process;

/* Reads the first line of a process: the address of rank 0, or a word when the process is connected. */
static void process_hear(const process *p, char *out, size_t bytes) {
    size_t n = 0;
    while (n + 1 < bytes && read(p->fd, out + n, 1) == 1 && out[n] != '\n')
        n++;
    assert_true(n > 0);
    out[n] = 0;
}

static process process_start(const char *role, int32_t number, pace at, const char *address) {
    char number_text[16], pace_text[16];
    int pair[2];
    snprintf(number_text, sizeof number_text, "%d", (int)number);
    snprintf(pace_text, sizeof pace_text, "%d", (int)at);
    char *const argv[] = {"test_lifeline", (char *)role, number_text, pace_text, (char *)address, NULL};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (dup2(pair[1], 0) == 0 && dup2(pair[1], 1) == 1)
            execv("/proc/self/exe", argv);
        _exit(127);
    }
    assert_true(pid > 0);
    close(pair[1]);
    return (process){.pid = pid, .fd = pair[0]};
}

/* Its exit status, or minus the signal that ended it. */
static int process_end(process *p) {
    int status = 0;
    close(p->fd);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static process client_start(const char *address, int32_t rank, pace at) {
    char word[32];
    process p = process_start("client", rank, at, address);
    process_hear(&p, word, sizeof word);
    assert_string_equal(word, "connected");
    return p;
}

/* Connects or listens, prints that it is ready, and closes when its input ends. Exit status 3: a loss was reported
 * before. */
static int other_main(char **argv) {
    losses seen;
    char byte;
    mr_lifeline *l;
    int number = atoi(argv[2]);
    pace at = (pace)atoi(argv[3]);
    losses_init(&seen);
    if (strcmp(argv[1], "client") == 0) {
        l = connect_as(argv[4], number, &seen, at);
        puts("connected");
    } else {
        l = listen_for(number, &seen, at);
        puts(mr_lifeline_address(l));
    }
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    mr_lifeline_close(l);
    return seen.n ? 3 : 0;
}

/* --- deaths and goodbyes --- */

static void test_a_killed_rank_is_noticed(void **state) {
    losses *seen = *state;
    process clients[3];
    mr_lifeline *l = listen_for(4, seen, SLOW);
    for (int i = 0; i < 3; i++)
        clients[i] = client_start(mr_lifeline_address(l), i + 1, SLOW);
    int64_t from_ns = mr_clock_now_ns();
    kill(clients[1].pid, SIGKILL);
    assert_int_equal(losses_wait(seen, 1, PATIENCE_NS), 1);
    int64_t took_ns = mr_clock_now_ns() - from_ns;
    print_message("kill -9 noticed after %.3f ms\n", (double)took_ns / 1e6);
    assert_true(took_ns < 4 * MR_NS_PER_S); /* sooner than the limit of silence */
    assert_int_equal(seen->ranks[0], 2);
    assert_string_equal(seen->whys[0], "its connection closed");
    assert_int_equal(process_end(&clients[1]), -SIGKILL);
    assert_int_equal(process_end(&clients[0]), 0);
    assert_int_equal(process_end(&clients[2]), 0);
    mr_lifeline_close(l);
    assert_int_equal(seen->n, 1);
}

static void test_a_killed_rank_0_is_noticed(void **state) {
    losses *seen = *state;
    char address[MR_LIFELINE_ADDRESS_BYTES];
    process server = process_start("server", 3, SLOW, "");
    process_hear(&server, address, sizeof address);
    mr_lifeline *a = connect_as(address, 1, seen, SLOW);
    mr_lifeline *b = connect_as(address, 2, seen, SLOW);
    assert_string_equal(mr_lifeline_address(a), "");
    kill(server.pid, SIGKILL);
    assert_int_equal(losses_wait(seen, 2, 4 * MR_NS_PER_S), 2);
    assert_int_equal(seen->ranks[0], 0);
    assert_int_equal(seen->ranks[1], 0);
    assert_int_equal(process_end(&server), -SIGKILL);
    mr_lifeline_close(a);
    mr_lifeline_close(b);
}

static bool ask_flag(void *ctx) {
    return atomic_load(&((losses *)ctx)->is_hung);
}

/* A process whose own work hangs says so: the thread of its lifeline runs. */
static void test_a_hung_rank_is_noticed(void **state) {
    losses *seen = *state;
    mr_lifeline *l = listen_for(2, seen, PATIENT), *client = NULL;
    lifeline_config config = config_of(seen, PATIENT);
    mr_err err = {0};
    config.hangs = ask_flag;
    expect_ok(lifeline_connect(mr_lifeline_address(l), 1, mr_clock_now_ns() + PATIENCE_NS, &config, &client, &err),
              &err);
    atomic_store(&seen->is_hung, true);
    assert_true(losses_wait(seen, 1, PATIENCE_NS) >= 1);
    assert_int_equal(seen->ranks[0], 1);
    assert_string_equal(seen->whys[0], "its step thread hangs");
    mr_lifeline_close(client);
    mr_lifeline_close(l);
}

static void test_goodbye_is_no_death(void **state) {
    losses *seen = *state;
    mr_lifeline *l = listen_for(3, seen, PATIENT);
    mr_lifeline *a = connect_as(mr_lifeline_address(l), 1, seen, PATIENT);
    mr_lifeline *b = connect_as(mr_lifeline_address(l), 2, seen, PATIENT);
    int64_t from_ns = mr_clock_now_ns();
    mr_lifeline_close(a); /* waits until rank 0 has closed its end of the connection, too */
    mr_lifeline_close(l);
    print_message("two goodbyes took %.3f ms\n", (double)(mr_clock_now_ns() - from_ns) / 1e6);
    mr_lifeline_close(b);
    mr_lifeline_close(NULL);
    assert_int_equal(seen->n, 0);
}

static void test_goodbye_between_processes(void **state) {
    losses *seen = *state;
    char address[MR_LIFELINE_ADDRESS_BYTES];
    process server = process_start("server", 3, PATIENT, "");
    process_hear(&server, address, sizeof address);
    process first = client_start(address, 1, PATIENT);
    mr_lifeline *l = connect_as(address, 2, seen, PATIENT);
    assert_int_equal(process_end(&first), 0);
    assert_int_equal(process_end(&server), 0); /* rank 0 has reported no loss */
    mr_lifeline_close(l);
    assert_int_equal(seen->n, 0);
}

static void test_silence_is_a_death(void **state) {
    losses *seen = *state;
    mr_lifeline *l = listen_for(2, seen, STRICT);
    process client = client_start(mr_lifeline_address(l), 1, PATIENT);
    kill(client.pid, SIGSTOP);
    assert_int_equal(losses_wait(seen, 1, PATIENCE_NS), 1);
    assert_int_equal(seen->ranks[0], 1);
    assert_string_equal(seen->whys[0], "no sign of life for 0.2 s");
    kill(client.pid, SIGCONT);
    assert_true(process_end(&client) >= 0); /* the client noticed that rank 0 dropped it, or was first told to end */
    mr_lifeline_close(l);
    assert_int_equal(seen->n, 1);
}

/* --- whoever else finds the port --- */

static int raw_connect(const mr_lifeline *l, lifeline_places *out_places) {
    struct timeval limit = {.tv_sec = 20};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(lifeline_address_read(mr_lifeline_address(l), out_places, NULL), MR_OK);
    /* The port is at the same place in an IPv6 address. */
    at.sin_port = ((const struct sockaddr_in *)&out_places->hosts[0])->sin_port;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void raw_send(int fd, const void *bytes, size_t n) {
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
}

/* The other side closes without a word. */
static void raw_expect_closed(int fd) {
    char byte;
    ssize_t n = recv(fd, &byte, 1, 0);
    assert_true(n == 0 || (n < 0 && errno == ECONNRESET));
    close(fd);
}

static const uint8_t NONCE[LIFELINE_NONCE_BYTES] = "some random text";

/* Says hello, takes the challenge, and writes the proof, of which some bits may be flipped. */
static void raw_prove(int fd, const mr_secret *key, int32_t rank, uint8_t *out_hello, uint8_t *out_challenge,
                      uint8_t *out_proof) {
    lifeline_hello_write(rank, NONCE, out_hello);
    raw_send(fd, out_hello, LIFELINE_HELLO_BYTES);
    assert_int_equal(recv(fd, out_challenge, LIFELINE_NONCE_BYTES, MSG_WAITALL), LIFELINE_NONCE_BYTES);
    lifeline_prove(key, LIFELINE_RANK, out_hello, out_challenge, out_proof);
}

static int raw_join(const mr_lifeline *l, int32_t rank) {
    lifeline_places places;
    uint8_t hello[LIFELINE_HELLO_BYTES], challenge[LIFELINE_NONCE_BYTES], proof[LIFELINE_PROOF_BYTES];
    int fd = raw_connect(l, &places);
    const mr_secret key = lifeline_key(NULL, places.token);
    lifeline_hello_write(rank, NONCE, hello);
    for (size_t i = 0; i < sizeof hello; i++) /* one byte in each write */
        raw_send(fd, &hello[i], 1);
    assert_int_equal(recv(fd, challenge, sizeof challenge, MSG_WAITALL), sizeof challenge);
    lifeline_prove(&key, LIFELINE_RANK, hello, challenge, proof);
    for (size_t i = 0; i < sizeof proof; i++)
        raw_send(fd, &proof[i], 1);
    assert_int_equal(recv(fd, proof, sizeof proof, MSG_WAITALL), sizeof proof);
    assert_true(lifeline_proves(&key, LIFELINE_RANK_0, hello, challenge, proof));
    assert_false(lifeline_proves(&key, LIFELINE_RANK, hello, challenge, proof));
    return fd;
}

static void test_signs_of_life_keep_coming(void **state) {
    losses *seen = *state;
    char bytes[4] = "";
    mr_lifeline *l = listen_for(2, seen, PATIENT);
    int fd = raw_join(l, 1);
    assert_int_equal(recv(fd, bytes, 3, MSG_WAITALL), 3);
    assert_string_equal(bytes, "hhh");
    raw_send(fd, "b", 1);
    close(fd);
    mr_lifeline_close(l);
    assert_int_equal(seen->n, 0);
}

/* A rank that was stopped finds the goodbye when it wakes, and takes nothing for a death. */
static void test_a_silent_rank_is_told(void **state) {
    losses *seen = *state;
    char byte = 0, last = 0;
    int32_t first = 0;
    mr_lifeline *l = listen_for(3, seen, STRICT);
    assert_int_equal(mr_lifeline_n_missing(l, &first), 2);
    assert_int_equal(first, 1);
    int fd = raw_join(l, 1);
    assert_int_equal(losses_wait(seen, 1, PATIENCE_NS), 1);
    assert_true(seen->silent_ns[0] >= 100 * MR_NS_PER_MS); /* it has joined, and said nothing for 9 beats */
    assert_int_equal(mr_lifeline_n_missing(l, &first), 1); /* rank 1 has joined */
    assert_int_equal(first, 2);
    while (recv(fd, &byte, 1, 0) == 1)
        last = byte;
    assert_int_equal(last, 'b');
    close(fd);
    mr_lifeline_close(l);
}

static void test_strangers_are_dropped(void **state) {
    losses *seen = *state;
    static const int32_t ranks[] = {0, -1, 3, 1 << 16, INT32_MIN};
    static const char http[] = "GET / HTTP/1.1\r\nHost: somebody\r\n\r\n";
    uint8_t hello[LIFELINE_HELLO_BYTES], challenge[LIFELINE_NONCE_BYTES], proof[LIFELINE_PROOF_BYTES];
    lifeline_places places;
    mr_lifeline *l = listen_for(3, seen, SLOW);
    int fd = raw_connect(l, &places);
    const mr_secret key = lifeline_key(NULL, places.token);
    raw_send(fd, http, sizeof http);
    raw_expect_closed(fd);
    for (size_t i = 0; i < LIFELINE_MAGIC_BYTES; i++) {
        fd = raw_connect(l, &places);
        lifeline_hello_write(1, NONCE, hello);
        hello[i] ^= 1;
        raw_send(fd, hello, sizeof hello);
        raw_expect_closed(fd);
    }
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        fd = raw_connect(l, &places);
        lifeline_hello_write(ranks[i], NONCE, hello);
        raw_send(fd, hello, sizeof hello);
        raw_expect_closed(fd);
    }
    for (size_t i = 0; i < sizeof proof; i++) {
        fd = raw_connect(l, &places);
        raw_prove(fd, &key, 1, hello, challenge, proof);
        proof[i] ^= 1;
        raw_send(fd, proof, sizeof proof);
        raw_expect_closed(fd);
    }
    fd = raw_connect(l, &places);
    raw_send(fd, hello, sizeof hello - 1); /* an incomplete hello, then the connection closes */
    close(fd);
    mr_lifeline *real = connect_as(mr_lifeline_address(l), 1, seen, SLOW);
    fd = raw_connect(l, &places);
    raw_prove(fd, &key, 1, hello, challenge, proof); /* a rank that joined already */
    raw_send(fd, proof, sizeof proof);
    raw_expect_closed(fd);
    mr_lifeline_close(real);
    mr_lifeline_close(l);
    assert_int_equal(seen->n, 0);
}

/* --- the launch secret --- */

static mr_secret secret_of(uint8_t first) {
    mr_secret s = {.is_set = true, .bytes = {first, 2, 3}};
    return s;
}

/* Ranks without the secret, or with another one, do not get in, which is logged once. The right one still does. */
static void test_only_the_secret_opens(void **state) {
    losses *seen = *state;
    const mr_secret right = secret_of(1), wrong = secret_of(9);
    const mr_secret *const others[] = {NULL, &wrong};
    mr_err err = {0};
    mr_lifeline *l = NULL, *client = NULL;
    lifeline_config config = config_of(seen, PATIENT);
    config.secret = &right;
    test_log log;
    test_log_begin(&log);
    expect_ok(lifeline_listen(3, &config, &l, &err), &err);
    for (int i = 0; i < 2; i++) {
        config.secret = others[i];
        expect_fails(
            lifeline_connect(mr_lifeline_address(l), 1, mr_clock_now_ns() + PATIENCE_NS, &config, &client, &err),
            MR_E_UNAVAILABLE, &err, "probably because its launch secret is another one; hint: MILLRACE_SECRET");
    }
    config.secret = &right;
    expect_ok(lifeline_connect(mr_lifeline_address(l), 1, mr_clock_now_ns() + PATIENCE_NS, &config, &client, &err),
              &err);
    const mr_secret here = mr_lifeline_secret(l), there = mr_lifeline_secret(client);
    assert_true(here.is_set && there.is_set);
    assert_memory_equal(here.bytes, there.bytes, MR_SECRET_BYTES);
    mr_lifeline_close(client);
    mr_lifeline_close(l);
    test_log_end(&log);
    assert_int_equal(log.n_lines, 1);
    expect_says(log.text, "rank 1 was refused: it does not know the launch secret");
    assert_int_equal(seen->n, 0);
}

/* A port that closes connections after the challenge, some times, before rank 0 listens behind it. */
typedef struct closing_port {
    int listen_fd, n;
    const mr_lifeline *rank_0;
} closing_port;

static void copy_bytes(int from, int to, size_t n) {
    uint8_t bytes[64];
    assert_true(n <= sizeof bytes);
    assert_int_equal(recv(from, bytes, n, MSG_WAITALL), n);
    raw_send(to, bytes, n);
}

/* Closes n connections after the challenge, then passes the whole meeting on to rank 0, and ends with the rank. */
static void closing_port_main(void *ctx) {
    closing_port *port = ctx;
    const uint8_t challenge[LIFELINE_NONCE_BYTES] = {1};
    lifeline_places places;
    uint8_t heard[LIFELINE_HELLO_BYTES];
    for (int i = 0; i < port->n; i++) {
        int fd = accept4(port->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        assert_int_equal(recv(fd, heard, sizeof heard, MSG_WAITALL), sizeof heard);
        raw_send(fd, challenge, sizeof challenge);
        close(fd);
    }
    int rank = accept4(port->listen_fd, NULL, NULL, SOCK_CLOEXEC), rank_0 = raw_connect(port->rank_0, &places);
    copy_bytes(rank, rank_0, LIFELINE_HELLO_BYTES);
    copy_bytes(rank_0, rank, LIFELINE_NONCE_BYTES);
    copy_bytes(rank, rank_0, LIFELINE_PROOF_BYTES);
    copy_bytes(rank_0, rank, LIFELINE_PROOF_BYTES);
    copy_bytes(rank, rank_0, 1); /* the goodbye: the beat of this pace is longer than the test */
    close(rank);
    close(rank_0);
}

static int mute_open(int backlog, int *out_port);

/* has_mute: rank 0 has another address, which takes connections and never answers. */
static void meet_through_closing_port(losses *seen, int n_closed, bool has_mute) {
    char address[MR_LIFELINE_ADDRESS_BYTES];
    int number, mute_number, mute = mute_open(8, &mute_number);
    mr_err err = {0};
    mr_thread *thread;
    mr_lifeline *l = listen_for(2, seen, SLOW), *client = NULL;
    closing_port port = {.n = n_closed, .rank_0 = l, .listen_fd = mute_open(8, &number)};
    lifeline_config config = config_of(seen, SLOW);
    config.refused_until_ns = mr_clock_now_ns() + PATIENCE_NS;
    int used = snprintf(address, sizeof address, "%.64s 127.0.0.1:%d", mr_lifeline_address(l), number);
    if (has_mute)
        snprintf(address + used, sizeof address - (size_t)used, " 127.0.0.1:%d", mute_number);
    assert_int_equal(mr_thread_create("port", 0, closing_port_main, &port, &thread, NULL), MR_OK);
    expect_ok(lifeline_connect(address, 1, mr_clock_now_ns() + PATIENCE_NS, &config, &client, &err), &err);
    mr_lifeline_close(client);
    mr_thread_join(thread);
    mr_lifeline_close(l);
    close(port.listen_fd);
    close(mute);
    assert_int_equal(seen->n, 0);
}

/* A connection that ends after the challenge is tried again until the limit. */
static void test_a_connection_that_closes_is_tried_again(void **state) {
    meet_through_closing_port(*state, 3, false);
    meet_through_closing_port(*state, 1, true);
}

/* With another secret it is tried again for the time that is given, and no longer. */
static void test_a_wrong_secret_is_reported_at_the_end(void **state) {
    losses *seen = *state;
    const mr_secret right = secret_of(1), wrong = secret_of(9);
    mr_err err = {0};
    mr_lifeline *l = NULL, *client = NULL;
    lifeline_config config = config_of(seen, PATIENT);
    config.secret = &right;
    test_log log;
    test_log_begin(&log);
    expect_ok(lifeline_listen(2, &config, &l, &err), &err);
    int64_t from_ns = mr_clock_now_ns();
    config.secret = &wrong;
    config.refused_until_ns = from_ns + 600 * MR_NS_PER_MS;
    expect_fails(lifeline_connect(mr_lifeline_address(l), 1, from_ns + PATIENCE_NS, &config, &client, &err),
                 MR_E_UNAVAILABLE, &err, "probably because its launch secret is another one; hint: MILLRACE_SECRET");
    int64_t took_ns = mr_clock_now_ns() - from_ns;
    assert_true(took_ns > 300 * MR_NS_PER_MS && took_ns < PATIENCE_NS);
    mr_lifeline_close(l);
    test_log_end(&log);
    assert_int_equal(log.n_lines, 1);
}

/* What one connection says opens no other one, and a rank that knows the secret does not take a stranger for rank 0. */
static void test_a_replayed_proof_opens_nothing(void **state) {
    losses *seen = *state;
    const mr_secret secret = secret_of(1);
    uint8_t hello[LIFELINE_HELLO_BYTES], challenge[LIFELINE_NONCE_BYTES], proof[LIFELINE_PROOF_BYTES], other[16];
    lifeline_places places;
    mr_err err = {0};
    mr_lifeline *l = NULL;
    lifeline_config config = config_of(seen, PATIENT);
    config.secret = &secret;
    expect_ok(lifeline_listen(3, &config, &l, &err), &err);
    int first = raw_connect(l, &places), second = raw_connect(l, &places);
    const mr_secret key = lifeline_key(&secret, places.token);
    raw_prove(first, &key, 1, hello, challenge, proof);
    raw_send(second, hello, sizeof hello);
    assert_int_equal(recv(second, other, sizeof other, MSG_WAITALL), sizeof other);
    assert_true(memcmp(other, challenge, sizeof other) != 0);
    raw_send(second, proof, sizeof proof); /* heard on the first connection */
    raw_expect_closed(second);
    raw_send(first, proof, sizeof proof);
    uint8_t answer[LIFELINE_PROOF_BYTES];
    assert_int_equal(recv(first, answer, sizeof answer, MSG_WAITALL), sizeof answer);
    assert_true(lifeline_proves(&key, LIFELINE_RANK_0, hello, challenge, answer));
    close(first);
    mr_lifeline_close(l);
}

/* Two launches with one secret have different keys, and without a secret there is none. */
static void test_keys_differ(void **state) {
    losses *seen = *state;
    const mr_secret secret = secret_of(1);
    mr_lifeline *l[3] = {0};
    mr_secret keys[3];
    for (int i = 0; i < 3; i++) {
        lifeline_config config = config_of(seen, PATIENT);
        config.secret = i < 2 ? &secret : NULL;
        assert_int_equal(lifeline_listen(1, &config, &l[i], NULL), MR_OK);
        keys[i] = mr_lifeline_secret(l[i]);
        mr_lifeline_close(l[i]);
    }
    assert_true(keys[0].is_set && keys[1].is_set && !keys[2].is_set);
    assert_true(memcmp(keys[0].bytes, keys[1].bytes, MR_SECRET_BYTES) != 0);
}

static void test_a_crowd_of_silent_strangers(void **state) {
    losses *seen = *state; /* ignored: on a busy machine the real client may be lost to silence, too */
    enum { N = 200 };
    int fds[N];
    lifeline_places places;
    mr_lifeline *l = listen_for(2, seen, STRICT);
    for (int i = 0; i < N; i++)
        fds[i] = raw_connect(l, &places);
    /* a place for it is free after the first strangers were dropped. */
    mr_lifeline *real = connect_as(mr_lifeline_address(l), 1, seen, PATIENT);
    for (int i = 0; i < N; i++)
        raw_expect_closed(fds[i]);
    mr_lifeline_close(real);
    mr_lifeline_close(l);
}

static void test_the_door_closes_behind_the_last_rank(void **state) {
    losses *seen = *state;
    lifeline_places places;
    mr_lifeline *l = listen_for(2, seen, SLOW), *late = NULL;
    int silent = raw_connect(l, &places);
    mr_lifeline *real = connect_as(mr_lifeline_address(l), 1, seen, SLOW);
    raw_expect_closed(silent);
    lifeline_config config = config_of(seen, PATIENT);
    mr_err err;
    assert_int_equal(lifeline_connect(mr_lifeline_address(l), 1, mr_clock_now_ns() + PATIENCE_NS, &config, &late, &err),
                     MR_E_IO);
    assert_null(late);
    mr_lifeline_close(real);
    mr_lifeline_close(l);
    assert_int_equal(seen->n, 0);
}

static void test_a_peer_that_talks_nonsense_is_lost(void **state) {
    losses *seen = *state;
    mr_lifeline *l = listen_for(3, seen, PATIENT);
    int fd = raw_join(l, 1);
    raw_send(fd, "hx", 2);
    assert_int_equal(losses_wait(seen, 1, PATIENCE_NS), 1);
    assert_string_equal(seen->whys[0], "it sent something malformed");
    close(fd);
    fd = raw_join(l, 2);
    raw_send(fd, "hhbx", 4); /* bytes behind a goodbye are ignored */
    shutdown(fd, SHUT_WR);
    char byte;
    while (recv(fd, &byte, 1, 0) == 1)
        ;
    close(fd);
    mr_lifeline_close(l);
    assert_int_equal(seen->n, 1);
}

static void test_close_while_others_are_connecting(void **state) {
    losses *seen = *state;
    lifeline_places places;
    mr_lifeline *l = listen_for(3, seen, SLOW);
    int silent = raw_connect(l, &places), half = raw_connect(l, &places), joined = raw_join(l, 2);
    raw_send(half, LIFELINE_MAGIC, LIFELINE_MAGIC_BYTES);
    int64_t from_ns = mr_clock_now_ns();
    mr_lifeline_close(l); /* rank 2 does not answer the goodbye, so closing waits for the timeout */
    int64_t took_ns = mr_clock_now_ns() - from_ns;
    assert_true(took_ns > 400 * MR_NS_PER_MS && took_ns < 10 * MR_NS_PER_S);
    raw_expect_closed(silent);
    raw_expect_closed(half);
    char byte = 0;
    while (recv(joined, &byte, 1, 0) == 1 && byte == 'h')
        ;
    assert_int_equal(byte, 'b');
    close(joined);
    assert_int_equal(seen->n, 0);
}

/* --- finding rank 0 --- */

/* Opens a socket at 127.0.0.1 that listens and never sends a byte. backlog -1: the socket refuses connections. */
static int mute_open(int backlog, int *out_port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, n), 0);
    assert_true(backlog < 0 || listen(fd, backlog) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    *out_port = ntohs(at.sin_port);
    return fd;
}

/* Sends the bytes back that it gets: a challenge, and the proof of the rank in place of rank 0's. */
static void echo_main(void *ctx) {
    uint8_t heard[LIFELINE_HELLO_BYTES + LIFELINE_PROOF_BYTES];
    int fd = accept4(*(int *)ctx, NULL, NULL, SOCK_CLOEXEC);
    if (recv(fd, heard, LIFELINE_HELLO_BYTES, MSG_WAITALL) == LIFELINE_HELLO_BYTES)
        raw_send(fd, heard, LIFELINE_NONCE_BYTES);
    if (recv(fd, heard, LIFELINE_PROOF_BYTES, MSG_WAITALL) == LIFELINE_PROOF_BYTES)
        raw_send(fd, heard, LIFELINE_PROOF_BYTES);
    raw_expect_closed(fd);
}

static void test_only_rank_0_counts(void **state) {
    losses *seen = *state;
    char address[3 * MR_LIFELINE_ADDRESS_BYTES];
    int mute_port, echo_port, closed_port;
    int mute = mute_open(8, &mute_port), echo = mute_open(8, &echo_port), closed = mute_open(-1, &closed_port);
    mr_thread *thread;
    assert_int_equal(mr_thread_create("echo", 0, echo_main, &echo, &thread, NULL), MR_OK);
    mr_lifeline *l = listen_for(2, seen, PATIENT);
    snprintf(address, sizeof address, "%.64s 127.0.0.1:%d 127.0.0.1:%d 127.0.0.1:%d%s", mr_lifeline_address(l),
             mute_port, echo_port, closed_port, mr_lifeline_address(l) + 64);
    mr_lifeline *real = connect_as(address, 1, seen, PATIENT);
    mr_lifeline_close(real);
    mr_lifeline_close(l);
    mr_thread_join(thread);
    assert_int_equal(seen->n, 0);
    close(mute);
    close(echo);
    close(closed);
}

static void test_nobody_answers(void **state) {
    losses *seen = *state;
    char address[MR_LIFELINE_ADDRESS_BYTES], name[32];
    int mute_port, echo_port, closed_port;
    int mute = mute_open(8, &mute_port), echo = mute_open(8, &echo_port), closed = mute_open(-1, &closed_port);
    mr_thread *thread;
    mr_lifeline *l = NULL;
    mr_err err = {0};
    lifeline_config config = config_of(seen, PATIENT);
    assert_int_equal(mr_thread_create("echo", 0, echo_main, &echo, &thread, NULL), MR_OK);
    snprintf(address, sizeof address, "%064x 127.0.0.1:%d 127.0.0.1:%d", 1, echo_port, closed_port);
    assert_int_equal(lifeline_connect(address, 1, mr_clock_now_ns() + PATIENCE_NS, &config, &l, &err), MR_E_IO);
    mr_thread_join(thread);
    snprintf(name, sizeof name, "127.0.0.1:%d (", closed_port);
    expect_says(err.text, name);
    expect_says(err.text, "(is not our rank 0)");
    expect_says(err.text, "firewall");
    snprintf(address, sizeof address, "%064x 127.0.0.1:%d 127.0.0.1:%d", 1, mute_port, closed_port);
    expect_fails(lifeline_connect(address, 1, mr_clock_now_ns() + 50 * MR_NS_PER_MS, &config, &l, &err), MR_E_TIMEOUT,
                 &err, "(no answer)");
    assert_int_equal(lifeline_connect(address, 1, 0, &config, &l, NULL), MR_E_TIMEOUT);
    assert_null(l);
    close(mute);
    close(echo);
    close(closed);
}

static mr_status read_text(const char *format, ...) {
    char text[4 * MR_LIFELINE_ADDRESS_BYTES];
    lifeline_places places;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return lifeline_address_read(text, &places, NULL);
}

static void test_address_texts(void **state) {
    static const char *const bad[] = {
        "",
        " ",
        "  1.2.3.4:5",
        " 1.2.3.4:5 ",
        " 1.2.3.4:5  1.2.3.4:5",
        "1.2.3.4:5",
        " 1.2.3.4",
        " 1.2.3.4:",
        " :5",
        " 1.2.3.4:0",
        " 1.2.3.4:65536",
        " 1.2.3.4:000005",
        " 1.2.3.4:+5",
        " 1.2.3.4:5x",
        " 1.2.3:5",
        " 1.2.3.256:5",
        " localhost:5",
        " ::1:5",
        " [::1:5",
        " [::1]5",
        " []:5",
        " [:5",
        " [::1%lo]:5",
        " [1.2.3.4]:5",
        " 1.2.3.4:5\n",
        " 1.2.3.4:5\t1.2.3.4:5",
        " 1111111111111111111111111111111111111111111111111111111111111111111:5",
    };
    lifeline_places places;
    (void)state;
    assert_int_equal(read_text("%064d 1.2.3.4:5", 0), MR_OK);
    assert_int_equal(read_text("%064d [fd00::2]:65535 127.0.0.1:1", 0), MR_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (read_text("%064d%s", 0, bad[i]) != MR_E_PROTOCOL)
            fail_msg("taken: \"%s\"", bad[i]);
    assert_int_equal(read_text("%063d 1.2.3.4:5", 0), MR_E_PROTOCOL);
    assert_int_equal(read_text("%065d 1.2.3.4:5", 0), MR_E_PROTOCOL);
    assert_int_equal(read_text("%063dA 1.2.3.4:5", 0), MR_E_PROTOCOL);
    assert_int_equal(read_text("%0600d 1.2.3.4:5", 0), MR_E_PROTOCOL);
    char many[MR_LIFELINE_ADDRESS_BYTES];
    int n = snprintf(many, sizeof many, "%064d", 0);
    for (int i = 0; i < LIFELINE_MAX_HOSTS; i++)
        n += snprintf(many + n, sizeof many - (size_t)n, " 1.2.3.4:5");
    assert_int_equal(lifeline_address_read(many, &places, NULL), MR_OK);
    assert_int_equal(places.n_hosts, LIFELINE_MAX_HOSTS);
    assert_int_equal(read_text("%s 1.2.3.4:5", many), MR_E_PROTOCOL);
}

static void test_own_address(void **state) {
    char text[MR_LIFELINE_ADDRESS_BYTES];
    uint8_t token[LIFELINE_TOKEN_BYTES];
    lifeline_places places;
    (void)state;
    for (int i = 0; i < LIFELINE_TOKEN_BYTES; i++)
        token[i] = (uint8_t)(7 + 37 * i);
    assert_int_equal(lifeline_address_write(token, AF_INET, 54321, text, NULL), MR_OK);
    assert_int_equal(lifeline_address_read(text, &places, NULL), MR_OK);
    assert_memory_equal(places.token, token, sizeof token);
    for (int i = 0; i < places.n_hosts; i++) {
        const struct sockaddr_in *at = (const struct sockaddr_in *)&places.hosts[i];
        assert_int_equal(at->sin_family, AF_INET);
        assert_int_equal(at->sin_port, htons(54321));
    }
    expect_says(text, " 127.0.0.1:54321");
    assert_int_equal(lifeline_address_write(token, AF_INET6, 1, text, NULL), MR_OK);
    print_message("%s\n", text + 64);
}

static void test_bad_ranks(void **state) {
    losses *seen = *state;
    mr_lifeline *l = NULL;
    static const int32_t counts[] = {-1, 0, MR_MAX_STAGES + 1}, ranks[] = {-1, 0, MR_MAX_STAGES};
    for (int i = 0; i < 3; i++) {
        const mr_lifeline_wish wish = {.self_rank = ranks[i], .lost = note_loss, .ctx = seen};
        assert_int_equal(mr_lifeline_listen(counts[i], NULL, note_loss, seen, &l, NULL), MR_E_INVALID);
        assert_int_equal(mr_lifeline_connect(&wish, "", 0, &l, NULL), MR_E_INVALID);
    }
    const mr_lifeline_wish first = {.self_rank = 1, .lost = note_loss, .ctx = seen};
    assert_int_equal(mr_lifeline_connect(&first, "", 0, &l, NULL), MR_E_PROTOCOL);
    assert_int_equal(mr_lifeline_listen(MR_MAX_STAGES, NULL, note_loss, seen, &l, NULL), MR_OK);
    mr_lifeline_close(l);
    assert_int_equal(mr_lifeline_listen(1, NULL, note_loss, seen, &l, NULL), MR_OK);
    mr_lifeline_close(l);
}

static void test_no_memory(void **state) {
    losses *seen = *state;
    lifeline_config config = config_of(seen, PATIENT);
    mr_lifeline *l = NULL, *client = NULL;
    mr_status status = MR_E_NO_MEMORY;
    for (int64_t n = 0; status != MR_OK; n++) {
        assert_true(n < 100);
        mr_mem_fail_at(n);
        status = lifeline_listen(2, &config, &l, NULL);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
    }
    /* Allocations of the thread, which is created last, are left out: rank 0 would have accepted the rank already. */
    for (int64_t n = 0; n < 4; n++) {
        mr_mem_fail_at(n);
        assert_int_equal(
            lifeline_connect(mr_lifeline_address(l), 1, mr_clock_now_ns() + PATIENCE_NS, &config, &client, NULL),
            MR_E_NO_MEMORY);
    }
    mr_mem_fail_at(-1);
    client = connect_as(mr_lifeline_address(l), 1, seen, PATIENT);
    mr_lifeline_close(client);
    mr_lifeline_close(l);
    assert_int_equal(seen->n, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv) {
    if (argc == 5)
        return other_main(argv);
    const struct CMUnitTest tests[] = {
        TEST(test_a_killed_rank_is_noticed),
        TEST(test_a_killed_rank_0_is_noticed),
        TEST(test_a_hung_rank_is_noticed),
        TEST(test_goodbye_is_no_death),
        TEST(test_goodbye_between_processes),
        TEST(test_silence_is_a_death),
        TEST(test_signs_of_life_keep_coming),
        TEST(test_a_silent_rank_is_told),
        TEST(test_strangers_are_dropped),
        TEST(test_only_the_secret_opens),
        TEST(test_a_connection_that_closes_is_tried_again),
        TEST(test_a_wrong_secret_is_reported_at_the_end),
        TEST(test_a_replayed_proof_opens_nothing),
        TEST(test_keys_differ),
        TEST(test_a_crowd_of_silent_strangers),
        TEST(test_the_door_closes_behind_the_last_rank),
        TEST(test_a_peer_that_talks_nonsense_is_lost),
        TEST(test_close_while_others_are_connecting),
        TEST(test_only_rank_0_counts),
        TEST(test_nobody_answers),
        TEST(test_address_texts),
        TEST(test_own_address),
        TEST(test_bad_ranks),
        TEST(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
