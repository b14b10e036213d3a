// SPDX-License-Identifier: Apache-2.0
/* Cases of the MPI channel only: a rank that is reported lost, sends that are never received, two threads, idle
 * waits. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "proto/link.h"
#include "test_channel_mpi.h"

enum { TAG = 300, TAG_NEVER, TAG_LARGE, TAG_CUT, LARGE_BYTES = 4 << 20 };

static endpoint as_endpoint(const mpi_world *w, mr_channel *ch) {
    return (endpoint){.ch = ch, .self = ch->self, .n = w->n_ranks + 1, .seed = suite_seed()};
}

/* --- Faults ------------------------------------------------------------------------------------------------------ */

/* A large send that nobody receives cannot be taken back; the receiver gets it whole, later. */
static bool cancel_large_send(mpi_world *w) {
    static uint8_t data[LARGE_BYTES]; /* MPI may read it for as long as the process lives */
    endpoint e = as_endpoint(w, w->stage);
    size_t bytes = 0;
    mr_channel_request r = 0;
    if (w->rank == 0) {
        fill_pattern(data, LARGE_BYTES, e.seed, 1);
        CHECK(&e, mr_channel_post_send(e.ch, 1, TAG_LARGE, data, LARGE_BYTES, &r, NULL) == MR_OK);
        CHECK(&e, !mr_channel_cancel(e.ch, r));
        CHECK(&e, send_now(e.ch, 1, TAG, "!", 1) == MR_OK);
    } else if (w->rank == 1) {
        char go;
        CHECK(&e, recv_now(e.ch, 0, TAG, &go, 1, NULL) == MR_OK);
        CHECK(&e, recv_now(e.ch, 0, TAG_LARGE, data, LARGE_BYTES, &bytes) == MR_OK && bytes == LARGE_BYTES);
        CHECK(&e, has_pattern(data, LARGE_BYTES, e.seed, 1));
    }
    return true;
}

/* Waits, at most 10 s, until the channel has freed all blocks. */
static bool nothing_left(mr_channel *ch) {
    int64_t deadline_ns = mr_clock_now_ns() + 10 * MR_NS_PER_S;
    while (mr_channel_left_bytes(ch) > 0 && mr_clock_now_ns() < deadline_ns)
        if (mr_channel_wait(ch, mr_clock_now_ns() + MR_NS_PER_MS, NULL) != MR_OK)
            return false;
    return mr_channel_left_bytes(ch) == 0;
}

static bool send_slots(mr_outbox *out, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        uint8_t *payload = NULL;
        const mr_frame frame = {.payload_bytes = LARGE_BYTES, .rows = 1, .row_bytes = LARGE_BYTES};
        if (mr_outbox_reserve(out, &payload, NULL) != MR_OK || !payload || mr_outbox_send(out, &frame, NULL) != MR_OK)
            return false;
    }
    return true;
}

/* Both ends of a link with large messages go, at any moment: in the end no block is left. receives: the receiver has
 * posted its receives when the messages come, so that some may have begun to arrive. */
static bool leave_link(mpi_world *w, uint32_t epoch, bool receives) {
    enum { SLOTS = 3 };
    endpoint e = as_endpoint(w, w->stage);
    mr_inbox *in = NULL;
    mr_outbox *out = NULL;
    mr_err err;
    char go;
    if (w->rank == 0) {
        CHECK(&e, mr_outbox_create(e.ch, 1, MR_LINK_ACTIVATIONS, epoch, SLOTS, LARGE_BYTES, &out, &err) == MR_OK);
        CHECK(&e, recv_now(e.ch, 1, TAG, &go, 1, NULL) == MR_OK);
        CHECK(&e, send_slots(out, SLOTS));
        mr_outbox_destroy(out);
        CHECK(&e, send_now(e.ch, 1, TAG, "!", 1) == MR_OK);
        CHECK(&e, recv_now(e.ch, 1, TAG, &go, 1, NULL) == MR_OK);
        CHECK(&e, nothing_left(e.ch));
        CHECK(&e, send_now(e.ch, 1, TAG, "!", 1) == MR_OK);
    } else if (w->rank == 1) {
        CHECK(&e, mr_inbox_create(e.ch, 0, MR_LINK_ACTIVATIONS, epoch, SLOTS, LARGE_BYTES, &in, &err) == MR_OK);
        if (!receives)
            mr_inbox_destroy(in);
        CHECK(&e, send_now(e.ch, 0, TAG, "!", 1) == MR_OK);
        CHECK(&e, recv_now(e.ch, 0, TAG, &go, 1, NULL) == MR_OK);
        if (receives)
            mr_inbox_destroy(in);
        CHECK(&e, send_now(e.ch, 0, TAG, "!", 1) == MR_OK);
        CHECK(&e, recv_now(e.ch, 0, TAG, &go, 1, NULL) == MR_OK); /* takes what nobody wants, meanwhile */
        CHECK(&e, nothing_left(e.ch));
    }
    return true;
}

static bool leave_links(mpi_world *w) {
    for (uint32_t i = 0; i < 20; i++)
        if (!mpi_agree(leave_link(w, 100 + i, i % 2 == 0)))
            return false;
    return true;
}

/* The same for a message that does not fit by far: its receive alone fails, and the send completes. */
static bool truncate_large(mpi_world *w) {
    static uint8_t data[LARGE_BYTES];
    endpoint e = as_endpoint(w, w->stage);
    uint8_t few[100 + 8] = {0};
    mr_channel_request first = 0, second = 0;
    if (w->rank == 0) {
        memset(data, 'd', sizeof data);
        CHECK(&e, send_now(e.ch, 1, TAG_CUT, data, LARGE_BYTES) == MR_OK);
        CHECK(&e, send_now(e.ch, 1, TAG_CUT, "after", 5) == MR_OK);
    } else if (w->rank == 1) {
        size_t bytes = 0;
        CHECK(&e, mr_channel_post_recv(e.ch, 0, TAG_CUT, few, 100, &first, NULL) == MR_OK);
        CHECK(&e, mr_channel_post_recv(e.ch, 0, TAG_CUT, data, sizeof data, &second, NULL) == MR_OK);
        CHECK(&e, finish(e.ch, first, NULL) == MR_E_PROTOCOL);
        CHECK(&e, finish(e.ch, second, &bytes) == MR_OK && bytes == 5 && memcmp(data, "after", 5) == 0);
        for (size_t i = 100; i < sizeof few; i++)
            CHECK(&e, few[i] == 0);
    }
    return true;
}

/* --- Two threads ------------------------------------------------------------------------------------------------- */

static void spin_for(uint32_t n) {
    for (volatile uint32_t i = 0; i < n; i = i + 1)
        continue;
}

/* The coordinator cancels receives whose message comes at this moment, and goes on with the same slots. */
static bool cancel_while_it_finishes(void *ctx) {
    enum { ROUNDS = 20000 };
    mpi_world *w = ctx;
    endpoint e = as_endpoint(w, w->coordinator);
    static char sent = 's', got[2];
    mr_completion c = {.done = false};
    for (uint32_t i = 0; i < ROUNDS; i++) {
        mr_channel_request first = 0, second = 0, sending = 0;
        uint32_t tag = 400 + i % 1000;
        CHECK(&e, mr_channel_post_recv(e.ch, e.self, tag, &got[0], 1, &first, NULL) == MR_OK);
        CHECK(&e, mr_channel_post_send(e.ch, e.self, tag, &sent, 1, &sending, NULL) == MR_OK);
        spin_for(i * 37 % 5000);
        CHECK(&e, mr_channel_cancel(e.ch, first));
        CHECK(&e, mr_channel_test(e.ch, first, &c, NULL) == MR_E_INVALID);
        CHECK(&e, mr_channel_post_recv(e.ch, e.self, 1400, &got[1], 1, &second, NULL) == MR_OK);
        CHECK(&e, finish(e.ch, sending, NULL) == MR_OK);
        CHECK(&e, mr_channel_test(e.ch, second, &c, NULL) == MR_OK && !c.done);
        CHECK(&e, mr_channel_cancel(e.ch, second));
        /* Where the first receive was taken back, its message is still under way. */
        CHECK(&e, mr_channel_post_recv(e.ch, e.self, tag, &got[0], 1, &first, NULL) == MR_OK);
        CHECK(&e, mr_channel_test(e.ch, first, &c, NULL) == MR_OK && mr_channel_cancel(e.ch, first));
    }
    return true;
}

static bool cancel_races(mpi_world *w) {
    return w->rank != 0 || run_beside(w, cancel_while_it_finishes, w);
}

/* Fills both tables of rank 0: receives of the one endpoint, sends of the other. */
static bool post_all_sends(void *ctx) {
    mpi_world *w = ctx;
    endpoint e = as_endpoint(w, w->coordinator);
    mr_channel_request r[MAX_REQUESTS], more;
    for (int32_t i = 0; i < MAX_REQUESTS; i++)
        CHECK(&e, mr_channel_post_send(e.ch, 0, TAG, "x", 1, &r[i], NULL) == MR_OK);
    CHECK(&e, mr_channel_post_send(e.ch, 0, TAG, "x", 1, &more, NULL) == MR_E_NO_MEMORY);
    for (int32_t i = 0; i < MAX_REQUESTS; i++)
        CHECK(&e, finish(e.ch, r[i], NULL) == MR_OK);
    return true;
}

static bool many_requests(mpi_world *w) {
    endpoint e = as_endpoint(w, w->stage);
    char bytes[MAX_REQUESTS];
    mr_channel_request r[MAX_REQUESTS];
    if (w->rank != 0)
        return true;
    for (int32_t i = 0; i < MAX_REQUESTS; i++)
        CHECK(&e, mr_channel_post_recv(e.ch, w->n_ranks, TAG, &bytes[i], 1, &r[i], NULL) == MR_OK);
    CHECK(&e, run_beside(w, post_all_sends, w));
    for (int32_t i = 0; i < MAX_REQUESTS; i++)
        CHECK(&e, finish(e.ch, r[i], NULL) == MR_OK && bytes[i] == 'x');
    return true;
}

typedef struct stall {
    mpi_world *world;
    atomic_bool posted, stalls, goes_on, done;
    bool passed;
} stall;

static void wait_for(const atomic_bool *flag) {
    while (!atomic_load(flag))
        (void)nanosleep(&(struct timespec){.tv_nsec = MR_NS_PER_MS}, NULL);
}

static bool cancel_twice(stall *s) {
    endpoint e = as_endpoint(s->world, s->world->coordinator);
    static char got[2];
    mr_channel_request r = 0;
    CHECK(&e, mr_channel_post_recv(e.ch, 0, TAG_NEVER, &got[0], 1, &r, NULL) == MR_OK);
    atomic_store(&s->posted, true);
    wait_for(&s->stalls);
    CHECK(&e, !mr_channel_cancel(e.ch, r));
    atomic_store(&s->goes_on, true);
    CHECK(&e, send_now(e.ch, 0, TAG, "g", 1) == MR_OK); /* with the owner's help */
    CHECK(&e, mr_channel_post_recv(e.ch, 0, TAG_NEVER, &got[1], 1, &r, NULL) == MR_OK);
    CHECK(&e, mr_channel_cancel(e.ch, r));
    return true;
}

static void cancel_twice_main(void *ctx) {
    stall *s = ctx;
    s->passed = cancel_twice(s);
    atomic_store(&s->goes_on, true);
    atomic_store(&s->done, true);
    mr_channel_wake(s->world->stage);
}

/* An owner that stalls for seconds keeps the buffer of a receive that is cancelled meanwhile, but not those of later
 * ones. */
static bool cancel_after_a_stall(mpi_world *w) {
    stall s = {.world = w};
    endpoint e = as_endpoint(w, w->stage);
    mr_channel_request r = 0;
    mr_thread *t = NULL;
    static char go;
    if (w->rank != 0)
        return true;
    CHECK(&e, mr_channel_post_recv(e.ch, w->n_ranks, TAG, &go, 1, &r, NULL) == MR_OK);
    CHECK(&e, mr_thread_create("coordinator", 0, cancel_twice_main, &s, &t, NULL) == MR_OK);
    wait_for(&s.posted);
    mr_channel_progress(w->stage);
    atomic_store(&s.stalls, true);
    wait_for(&s.goes_on);
    mr_status status = finish(w->stage, r, NULL);
    while (status == MR_OK && !atomic_load(&s.done))
        status = mr_channel_wait(w->stage, MR_NEVER, NULL);
    mr_thread_join(t);
    return status == MR_OK && s.passed;
}

/* --- Idle waiting ------------------------------------------------------------------------------------------------ */

static mr_status wait_for_s(mr_channel *ch, double s) {
    int64_t deadline = mr_clock_now_ns() + (int64_t)(s * 1e9);
    mr_status status = MR_OK;
    while (status == MR_OK && mr_clock_now_ns() < deadline)
        status = mr_channel_wait(ch, deadline, NULL);
    return status;
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* After a second without work a waiting owner takes hardly any time of its core. */
static bool idle_cpu(mpi_world *w) {
    const double WINDOW_S = 3.0;
    endpoint e = as_endpoint(w, w->stage);
    CHECK(&e, wait_for_s(w->stage, 1.5) == MR_OK);
    double before = cpu_s();
    CHECK(&e, wait_for_s(w->stage, WINDOW_S) == MR_OK);
    double share = (cpu_s() - before) / WINDOW_S;
    if (w->rank == 0)
        printf("       a waiting rank takes %.2f %% of a core\n", 100 * share);
    CHECK(&e, share < 0.05);
    return true;
}

static void wake_main(void *ctx) {
    mr_channel_wake(ctx);
}

/* Wakes, and the coordinator's requests, reach an owner that sleeps between its looks. */
static bool talk_to_itself(void *ctx) {
    mpi_world *w = ctx;
    endpoint e = as_endpoint(w, w->coordinator);
    mr_channel_request r = 0;
    char c = 0;
    CHECK(&e, mr_channel_post_recv(e.ch, e.self, TAG, &c, 1, &r, NULL) == MR_OK);
    CHECK(&e, send_now(e.ch, e.self, TAG, "y", 1) == MR_OK && finish(e.ch, r, NULL) == MR_OK && c == 'y');
    return true;
}

static bool wake_from_sleep(mpi_world *w) {
    endpoint e = as_endpoint(w, w->stage);
    mr_thread *t = NULL;
    CHECK(&e, wait_for_s(w->stage, 1.2) == MR_OK);
    int64_t start = mr_clock_now_ns();
    CHECK(&e, mr_thread_create("waker", 0, wake_main, w->stage, &t, NULL) == MR_OK);
    mr_status status = mr_channel_wait(w->stage, start + 50 * MR_NS_PER_S, NULL);
    mr_thread_join(t);
    CHECK(&e, status == MR_OK && mr_clock_now_ns() < start + 40 * MR_NS_PER_S);
    return w->rank != 0 || run_beside(w, talk_to_itself, w);
}

const mpi_test mpi_fault_tests[] = {
    {"all slots of both endpoints in use", many_requests},
    {"receives that are cancelled while they finish", cancel_races},
    {"a waiting rank leaves its core alone", idle_cpu},
    {"waking a sleeping owner", wake_from_sleep},
    {"a large message that is too long", truncate_large},
    {"links that end while large messages come", leave_links},
    {NULL, NULL},
};

/* --- Lost ranks -------------------------------------------------------------------------------------------------- */

typedef struct loss {
    mpi_world *world;
    int32_t victim;
} loss;

static void lose_main(void *ctx) {
    const loss *l = ctx;
    mr_mpi_peer_lost(l->world->mpi, l->victim);
}

/* Both sides of what is posted to a rank end when it is lost, and nothing else does. */
static bool ends_at_loss(const mpi_world *w, mr_channel *ch, int32_t victim) {
    endpoint e = as_endpoint(w, ch);
    static uint8_t never[2][2], own[2]; /* of the stage, of the coordinator */
    uint8_t *n = never[ch == w->coordinator], *o = &own[ch == w->coordinator];
    mr_channel_request r[2] = {0}, mine = 0, late = 0;
    mr_err err = {0};
    mr_thread *t = NULL;
    char name[MR_CHANNEL_NAME_BYTES];
    loss l = {(mpi_world *)(uintptr_t)w, victim};
    for (int i = 0; i < 2; i++)
        CHECK(&e, mr_channel_post_recv(ch, victim, TAG_NEVER, &n[i], 1, &r[i], NULL) == MR_OK);
    CHECK(&e, mr_channel_post_recv(ch, ch->self, TAG, o, 1, &mine, NULL) == MR_OK);
    CHECK(&e, mr_thread_create("lifeline", 0, lose_main, &l, &t, NULL) == MR_OK);
    mr_status status = finish(ch, r[0], NULL);
    mr_thread_join(t);
    CHECK(&e, status == MR_E_PEER_LOST);
    mr_completion c;
    CHECK(&e, mr_channel_test(ch, r[1], &c, &err) == MR_E_PEER_LOST);
    CHECK(&e, strstr(err.text, mr_channel_peer_name(ch, victim, name)));
    CHECK(&e, mr_channel_cancel(ch, r[0]) && mr_channel_cancel(ch, r[1]));
    CHECK(&e, mr_channel_post_recv(ch, victim, TAG, n, 1, &late, &err) == MR_E_PEER_LOST);
    CHECK(&e, mr_channel_post_send(ch, victim, TAG, n, 1, &late, &err) == MR_E_PEER_LOST && late == 0);
    CHECK(&e, strstr(err.text, mr_channel_peer_name(ch, victim, name)));
    CHECK(&e, send_now(ch, ch->self, TAG, "m", 1) == MR_OK && finish(ch, mine, NULL) == MR_OK && *o == 'm');
    return true;
}

static bool stage_loses(mpi_world *w) {
    return w->rank != 0 || ends_at_loss(w, w->stage, 1);
}

static bool coordinator_loses_body(void *ctx) {
    mpi_world *w = ctx;
    return ends_at_loss(w, w->coordinator, 2);
}

static bool coordinator_loses(mpi_world *w) {
    return w->rank != 0 || run_beside(w, coordinator_loses_body, w);
}

/* A large send to a rank that does not receive it: it is lost, and MPI keeps the buffer. */
static bool large_send_to_the_lost(mpi_world *w) {
    static uint8_t data[LARGE_BYTES];
    endpoint e = as_endpoint(w, w->stage);
    mr_channel_request r = 0;
    mr_completion c;
    if (w->rank != 0)
        return true;
    CHECK(&e, mr_channel_post_send(e.ch, 3, TAG_LARGE, data, LARGE_BYTES, &r, NULL) == MR_OK);
    mr_mpi_peer_lost(w->mpi, 3);
    CHECK(&e, finish(e.ch, r, NULL) == MR_E_PEER_LOST);
    CHECK(&e, mr_channel_test(e.ch, r, &c, NULL) == MR_E_PEER_LOST); /* it stays, for cancel */
    CHECK(&e, !mr_channel_cancel(e.ch, r));
    return true;
}

/* What a rank had sent before its end is received; what it has not sent is lost. */
static bool words_before_the_loss(mpi_world *w) {
    enum { N = 5 };
    endpoint e = as_endpoint(w, w->stage);
    static char got[N + 1];
    mr_channel_request r[N + 1];
    size_t bytes = 0;
    for (int32_t i = 0; i <= N && w->rank == 0; i++)
        CHECK(&e, mr_channel_post_recv(e.ch, 4, TAG, &got[i], 1, &r[i], NULL) == MR_OK);
    CHECK(&e, mpi_agree(true));
    for (int32_t i = 0; i < N && w->rank == 4; i++)
        CHECK(&e, send_now(e.ch, 0, TAG, &"words"[i], 1) == MR_OK);
    CHECK(&e, mpi_agree(true));
    if (w->rank != 0)
        return true;
    mr_mpi_peer_lost(w->mpi, 4);
    CHECK(&e, finish(e.ch, r[N], NULL) == MR_E_PEER_LOST);
    for (int32_t i = 0; i < N; i++)
        CHECK(&e, finish(e.ch, r[i], &bytes) == MR_OK && bytes == 1 && got[i] == "words"[i]);
    return true;
}

/* The coordinator posts while the rank is lost: whatever was accepted ends. */
static bool post_while_losing(void *ctx) {
    mpi_world *w = ctx;
    endpoint e = as_endpoint(w, w->coordinator);
    static char bytes[MAX_REQUESTS];
    mr_channel_request r[MAX_REQUESTS];
    mr_thread *t = NULL;
    loss l = {w, 5};
    int32_t n = 0;
    mr_status status = MR_OK;
    CHECK(&e, mr_thread_create("lifeline", 0, lose_main, &l, &t, NULL) == MR_OK);
    while (status == MR_OK && n < MAX_REQUESTS) {
        status = mr_channel_post_recv(e.ch, l.victim, TAG_NEVER, &bytes[n], 1, &r[n], NULL);
        n += status == MR_OK;
        spin_for(2000);
    }
    mr_thread_join(t);
    CHECK(&e, status == MR_OK || status == MR_E_PEER_LOST);
    for (int32_t i = 0; i < n; i++)
        CHECK(&e, finish(e.ch, r[i], NULL) == MR_E_PEER_LOST);
    return true;
}

static bool posts_race_with_loss(mpi_world *w) {
    return w->rank != 0 || run_beside(w, post_while_losing, w);
}

const mpi_test mpi_lost_tests[] = {
    {"a large send cannot be taken back", cancel_large_send},
    {"receives of a lost rank", stage_loses},
    {"receives of a lost rank, at the coordinator", coordinator_loses},
    {"a large send to a lost rank", large_send_to_the_lost},
    {"what was sent before the loss", words_before_the_loss},
    {"posts during the loss", posts_race_with_loss},
    {"receives that are cancelled after the owner has stalled", cancel_after_a_stall}, /* last: it keeps a slot */
    {NULL, NULL},
};
