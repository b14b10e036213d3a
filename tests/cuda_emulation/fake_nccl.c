/* tests/cuda_emulation/fake_nccl.c - the fake NCCL. The sender's end listens at an abstract Unix socket, whose name is
 * the id, and the receiver's end connects. A transfer: the receiver writes a byte when its turn has come, and then the
 * sender writes the bytes. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/fake_nccl.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "tests/cuda_emulation/driver.h"

enum { VERSION = 22809, POLL_MS = 2, TEXT_BYTES = 256, MAX_COMMS = 64, SOCKET_BYTES = 1 << 20 };
enum { INVALID_USAGE = 5 };

typedef enum call_kind {
#define FUNCTION(member, symbol, ...) CALL_##member,
#include "proto/nccl/nccl_library.def"
#undef FUNCTION
    CALL_connect,
    CALL_transfer,
    CALL_KINDS
} call_kind;

static const char *const names[CALL_KINDS] = {
#define FUNCTION(member, symbol, ...) [CALL_##member] = #member,
#include "proto/nccl/nccl_library.def"
#undef FUNCTION
    [CALL_connect] = "connect",
    [CALL_transfer] = "transfer",
};

struct ncclComm {
    struct sockaddr_un name;
    socklen_t name_bytes;
    int rank, listener, socket;
    atomic_int state; /* nccl_result of the last call */
    atomic_bool is_aborted;
    atomic_int n_working;        /* transfers on the thread of a stream */
    int32_t n_asks;              /* left, of the call that goes on */
    bool has_transfers, is_dead; /* is_dead: the abort has returned */
    mr_thread *connecting;
};

/* A transfer; lives until the reset, because a stream whose context is broken drops it. */
typedef struct transfer {
    struct transfer *next;
    struct ncclComm *comm;
    uint8_t *bytes;
    size_t n;
    bool is_first; /* of its communicator */
} transfer;

static mr_mutex lock = {PTHREAD_MUTEX_INITIALIZER};
static fake_nccl_options options;
static bool is_set;
static int32_t n_calls[CALL_KINDS];
static fake_nccl_counts counts;
static struct ncclComm *comms[MAX_COMMS];
static int32_t n_comms;
static transfer *transfers;
static atomic_int n_names;

_Noreturn static void stop(const char *what) {
    fprintf(stderr, "fake NCCL: %s\n", what);
    abort();
}

/* --- Options ----------------------------------------------------------------------------------------------------- */

static bool read_word(char *text, fake_nccl_options *o) {
    char *value = strchr(text, '=');
    if (value)
        *value++ = '\0';
    const struct {
        const char *name, **text;
        int32_t *number;
        bool *flag;
    } words[] = {
        {"missing", .flag = &o->missing},
        {"version", .number = &o->version},
        {"delay_us", .number = &o->delay_us},
        {"max_delay_us", .number = &o->max_delay_us},
        {"fail", .text = &o->fail},
        {"fail_at", .number = &o->fail_at},
        {"die", .text = &o->die},
        {"die_at", .number = &o->die_at},
        {"halt_at", .number = &o->halt_at},
        {"n_asks", .number = &o->n_asks},
        {"abort_hangs", .flag = &o->abort_hangs},
    };
    size_t i = 0, n = sizeof words / sizeof *words;
    while (i < n && strcmp(words[i].name, text) != 0)
        i++;
    if (i == n || !value != (words[i].flag != NULL))
        return false;
    if (words[i].text)
        *words[i].text = value;
    else if (words[i].number)
        *words[i].number = (int32_t)strtol(value, NULL, 10);
    else
        *words[i].flag = true;
    return true;
}

static void read_environment(void) {
    static char text[TEXT_BYTES];
    char name[64];
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    snprintf(name, sizeof name, "FAKE_NCCL_%.16s", rank ? rank : "");
    const char *given = getenv(name) ? getenv(name) : getenv("FAKE_NCCL");
    snprintf(text, sizeof text, "%s", given ? given : "");
    char *rest = text;
    options = (fake_nccl_options){0};
    for (char *word = strtok_r(rest, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        if (!read_word(word, &options))
            stop("FAKE_NCCL has an option that is not known");
}

/* Counts a call. NCCL_OK: it does not fail. */
static nccl_result begin(call_kind kind) {
    mr_mutex_lock(&lock);
    if (!is_set)
        read_environment();
    is_set = true;
    int32_t n = ++n_calls[kind];
    bool fails = options.fail && strcmp(options.fail, names[kind]) == 0 && n == options.fail_at;
    bool dies = options.die && strcmp(options.die, names[kind]) == 0 && n == options.die_at;
    mr_mutex_unlock(&lock);
    if (dies)
        (void)raise(SIGKILL);
    return fails ? NCCL_SYSTEM_ERROR : NCCL_OK;
}

static void delay(void) {
    static atomic_int n_drawn;
    int64_t ns = options.delay_us * INT64_C(1000);
    if (options.max_delay_us > 0) {
        uint64_t draw = mr_rng_u64(1, 2, (uint64_t)atomic_fetch_add(&n_drawn, 1));
        ns += (int64_t)(draw % (uint64_t)options.max_delay_us) * 1000;
    }
    if (options.pass)
        options.pass(ns);
    else if (ns > 0)
        nanosleep(&(struct timespec){.tv_sec = ns / MR_NS_PER_S, .tv_nsec = ns % MR_NS_PER_S}, NULL);
}

/* --- Sockets ----------------------------------------------------------------------------------------------------- */

/* Waits until the socket is ready. False: the communicator was aborted. */
static bool await_socket(const struct ncclComm *c, int fd, short events) {
    struct pollfd p = {.fd = fd, .events = events};
    while (!atomic_load(&c->is_aborted)) {
        int n = poll(&p, 1, POLL_MS);
        if (n > 0 && (p.revents & events))
            return true;
        if (n > 0) /* the other end is gone: NCCL does not notice */
            nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000}, NULL);
    }
    return false;
}

/* Writes or reads n bytes. Where the other end is gone, waits for the abort. */
static bool move_bytes(const struct ncclComm *c, uint8_t *bytes, size_t n, bool writes) {
    for (size_t at = 0; at < n;) {
        if (!await_socket(c, c->socket, writes ? POLLOUT : POLLIN))
            return false;
        ssize_t did = writes ? send(c->socket, bytes + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT)
                             : recv(c->socket, bytes + at, n - at, MSG_DONTWAIT);
        if (did > 0)
            at += (size_t)did;
        else
            nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000}, NULL);
    }
    return true;
}

/* The sender's end listens from the begin of the connection, and the receiver's end tries until it does. */
static bool meet(struct ncclComm *c) {
    if (c->rank == 0) {
        if (!await_socket(c, c->listener, POLLIN))
            return false;
        c->socket = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC);
        return c->socket >= 0;
    }
    c->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (c->socket >= 0 && connect(c->socket, (struct sockaddr *)&c->name, c->name_bytes) != 0) {
        if (atomic_load(&c->is_aborted))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000}, NULL);
    }
    return c->socket >= 0;
}

static void connect_ends(void *ctx) {
    struct ncclComm *c = ctx;
    uint8_t byte = 1;
    delay();
    nccl_result result = begin(CALL_connect);
    bool met =
        result == NCCL_OK && meet(c) && move_bytes(c, &byte, 1, c->rank == 0) && move_bytes(c, &byte, 1, c->rank == 1);
    delay();
    if (met || result != NCCL_OK)
        atomic_store(&c->state, result);
}

/* --- The functions ----------------------------------------------------------------------------------------------- */

static nccl_result fake_get_version(int *version) {
    nccl_result result = begin(CALL_get_version);
    *version = options.version ? options.version : VERSION;
    return result;
}

static nccl_result fake_get_unique_id(nccl_id *id) {
    nccl_result result = begin(CALL_get_unique_id);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "millrace-fake-nccl-%d-%d", (int)getpid(),
             atomic_fetch_add(&n_names, 1));
    return result;
}

static nccl_result fake_comm_init_rank_config(nccl_comm *out, int n_ranks, nccl_id id, int rank, nccl_config *config) {
    nccl_result result = begin(CALL_comm_init_rank_config);
    if (n_ranks != 2 || rank < 0 || rank > 1 || config->blocking != 0 || config->size != sizeof *config ||
        config->magic != (unsigned)NCCL_CONFIG_MAGIC)
        return NCCL_INVALID_ARGUMENT;
    if (result != NCCL_OK)
        return result;
    struct ncclComm *c = calloc(1, sizeof *c);
    if (!c)
        stop("no memory");
    c->rank = rank;
    c->listener = c->socket = -1;
    atomic_store(&c->state, NCCL_IN_PROGRESS);
    c->name.sun_family = AF_UNIX;
    snprintf(c->name.sun_path + 1, sizeof c->name.sun_path - 1, "%.100s", id.internal);
    c->name_bytes = (socklen_t)sizeof c->name;
    if (rank == 0) {
        c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->listener < 0 || bind(c->listener, (struct sockaddr *)&c->name, c->name_bytes) != 0 ||
            listen(c->listener, 1) != 0)
            stop("no socket");
    }
    if (mr_thread_create("fake nccl", 0, connect_ends, c, &c->connecting, NULL) != MR_OK) {
        if (c->listener >= 0)
            close(c->listener);
        free(c);
        return NCCL_SYSTEM_ERROR;
    }
    mr_mutex_lock(&lock);
    if (n_comms == MAX_COMMS)
        stop("too many communicators");
    comms[n_comms++] = c;
    counts.n_live++;
    mr_mutex_unlock(&lock);
    *out = c;
    return NCCL_IN_PROGRESS;
}

static nccl_result fake_comm_get_async_error(nccl_comm c, nccl_result *out) {
    nccl_result result = begin(CALL_comm_get_async_error);
    if (c->is_dead)
        stop("a communicator is used after its abort");
    *out = atomic_load(&c->state);
    if (c->n_asks > 0 && *out == NCCL_OK) {
        *out = NCCL_IN_PROGRESS;
        c->n_asks--;
    }
    return result;
}

/* Whether the transfer that was counted last halts. */
static bool is_halted(void) {
    mr_mutex_lock(&lock);
    bool halted = options.halt_at > 0 && n_calls[CALL_transfer] == options.halt_at;
    mr_mutex_unlock(&lock);
    return halted;
}

/* On the thread of the stream, whose memory is open. */
static void carry_out(void *ctx) {
    const transfer *t = ctx;
    struct ncclComm *c = t->comm;
    uint8_t turn = 1;
    atomic_fetch_add(&c->n_working, 1);
    size_t half = t->n / 2;
    bool writes = c->rank == 0;
    bool done = !t->is_first || (move_bytes(c, &turn, 1, true) && move_bytes(c, &turn, 1, false));
    if (done && t->is_first)
        atomic_store(&c->state, NCCL_OK);
    done = done && move_bytes(c, &turn, 1, !writes) && move_bytes(c, t->bytes, half, writes);
    delay();
    nccl_result result = done ? begin(CALL_transfer) : NCCL_OK;
    if (result != NCCL_OK)
        atomic_store(&c->state, NCCL_REMOTE_ERROR);
    if (done && (result != NCCL_OK || is_halted())) {
        while (!atomic_load(&c->is_aborted))
            nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000}, NULL);
        done = false;
    }
    done = done && move_bytes(c, t->bytes + half, t->n - half, writes);
    mr_mutex_lock(&lock);
    counts.n_transfers += done;
    counts.n_cut += !done;
    mr_mutex_unlock(&lock);
    atomic_fetch_sub(&c->n_working, 1);
}

static nccl_result give(call_kind kind, struct ncclComm *c, void *buffer, size_t n, nccl_type type, int peer,
                        nccl_stream stream) {
    nccl_result result = begin(kind);
    if (c->is_dead)
        stop("a communicator is used after its abort");
    if (atomic_load(&c->state) == NCCL_IN_PROGRESS || c->n_asks > 0)
        stop("a call while the one before goes on");
    if (type != NCCL_INT8 || peer != 1 - c->rank || (kind == CALL_send) != (c->rank == 0))
        return NCCL_INVALID_ARGUMENT;
    if (result != NCCL_OK)
        return result;
    transfer *t = calloc(1, sizeof *t);
    if (!t)
        stop("no memory");
    *t = (transfer){.comm = c, .bytes = buffer, .n = n, .is_first = !c->has_transfers};
    c->has_transfers = true;
    c->n_asks = t->is_first ? 0 : options.n_asks;
    if (t->is_first)
        atomic_store(&c->state, NCCL_IN_PROGRESS);
    mr_mutex_lock(&lock);
    t->next = transfers;
    transfers = t;
    mr_mutex_unlock(&lock);
    if (!emulated_driver_enqueue(stream, buffer, n, carry_out, t))
        return INVALID_USAGE;
    return t->is_first || c->n_asks > 0 ? NCCL_IN_PROGRESS : NCCL_OK;
}

static nccl_result fake_send(const void *buffer, size_t n, nccl_type type, int peer, nccl_comm c, nccl_stream stream) {
    return give(CALL_send, c, (void *)(uintptr_t)buffer, n, type, peer, stream);
}

static nccl_result fake_recv(void *buffer, size_t n, nccl_type type, int peer, nccl_comm c, nccl_stream stream) {
    return give(CALL_recv, c, buffer, n, type, peer, stream);
}

static nccl_result fake_comm_abort(nccl_comm c) {
    nccl_result result = begin(CALL_comm_abort);
    while (options.abort_hangs)
        (void)pause();
    if (c->is_dead)
        stop("a communicator is aborted twice");
    atomic_store(&c->is_aborted, true);
    mr_thread_join(c->connecting);
    while (atomic_load(&c->n_working) > 0)
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000}, NULL);
    if (c->socket >= 0)
        close(c->socket);
    if (c->listener >= 0)
        close(c->listener);
    c->is_dead = true;
    mr_mutex_lock(&lock);
    counts.n_live--;
    counts.n_aborted++;
    mr_mutex_unlock(&lock);
    return result;
}

static const char *fake_get_error_string(nccl_result result) {
    return result == NCCL_SYSTEM_ERROR   ? "system error (chosen)"
           : result == NCCL_REMOTE_ERROR ? "remote error"
                                         : "error";
}

mr_status fake_nccl_load(const nccl_library **out, mr_err *err) {
    static nccl_library table = {
#define FUNCTION(member, symbol, ...) .member = fake_##member,
#include "proto/nccl/nccl_library.def"
#undef FUNCTION
        .get_error_string = fake_get_error_string,
    };
    int version = 0;
    nccl_result result = fake_get_version(&version);
    if (options.missing || result != NCCL_OK)
        return mr_err_set(err, MR_E_UNSUPPORTED, "no NCCL: the fake says so");
    mr_mutex_lock(&lock);
    table.version = version;
    mr_mutex_unlock(&lock);
    *out = &table;
    return MR_OK;
}

void fake_nccl_reset(const fake_nccl_options *wanted) {
    mr_mutex_lock(&lock);
    if (counts.n_live > 0)
        stop("a communicator was not aborted");
    for (int32_t i = 0; i < n_comms; i++)
        free(comms[i]);
    while (transfers) {
        transfer *t = transfers;
        transfers = t->next;
        free(t);
    }
    n_comms = 0;
    counts = (fake_nccl_counts){0};
    memset(n_calls, 0, sizeof n_calls);
    is_set = true;
    if (wanted)
        options = *wanted;
    else
        read_environment();
    mr_mutex_unlock(&lock);
}

fake_nccl_counts fake_nccl_get_counts(void) {
    mr_mutex_lock(&lock);
    fake_nccl_counts now = counts;
    mr_mutex_unlock(&lock);
    return now;
}

/* The linker puts it in the place of the product's. */
mr_status __wrap_nccl_library_load(const nccl_library **out, mr_err *err);
mr_status __wrap_nccl_library_load(const nccl_library **out, mr_err *err) {
    return fake_nccl_load(out, err);
}
