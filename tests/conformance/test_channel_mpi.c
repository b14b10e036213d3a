/* tests/conformance/test_channel_mpi.c - the channel suite between the ranks of one mpirun: rank r is endpoint r; or
 * the coordinator, in a second thread of rank 0, is the first or the last endpoint.
 * usage: mpirun -n N test_channel_mpi suite|lost|leave */
// SPDX-License-Identifier: Apache-2.0
#include "test_channel_mpi.h"

#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"

enum { MAX_ENDPOINTS = 8 };

bool mpi_agree(bool ok) {
    const struct timespec pause = {.tv_nsec = 500000};
    int mine = ok, all = 0, done = 0;
    MPI_Request r;
    if (MPI_Iallreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD, &r) != MPI_SUCCESS)
        return false;
    while (MPI_Test(&r, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        nanosleep(&pause, NULL);
    return done && all;
}

/* --- The coordinator's thread ------------------------------------------------------------------------------------ */

typedef struct beside {
    mpi_world *world;
    bool (*body)(void *ctx);
    void *ctx;
    bool passed;
    atomic_bool done;
} beside;

static void beside_main(void *ctx) {
    beside *b = ctx;
    b->passed = b->body(b->ctx);
    atomic_store(&b->done, true);
    mr_channel_wake(b->world->stage);
}

static mr_thread *beside_start(beside *b) {
    mr_thread *t = NULL;
    if (mr_thread_create("coordinator", 0, beside_main, b, &t, NULL) != MR_OK)
        abort();
    return t;
}

static bool beside_end(beside *b, mr_thread *t) {
    bool ok = true;
    while (ok && !atomic_load(&b->done))
        ok = mr_channel_wait(b->world->stage, MR_NEVER, NULL) == MR_OK;
    mr_thread_join(t);
    return ok && b->passed;
}

bool run_beside(mpi_world *w, bool (*body)(void *ctx), void *ctx) {
    beside b = {.world = w, .body = body, .ctx = ctx};
    return beside_end(&b, beside_start(&b));
}

/* --- Tests of the suite ------------------------------------------------------------------------------------------ */

/* A channel whose endpoint i is endpoint places[i] of another one. */
typedef struct mapped {
    mr_channel base;
    mr_channel *inner;
    int32_t places[MAX_ENDPOINTS];
} mapped;

static mr_channel *inner_of(mr_channel *ch) {
    return ((mapped *)ch)->inner; /* base comes first */
}

static int32_t place_of(const mr_channel *ch, int32_t peer) {
    return peer >= 0 && peer < ch->n_peers ? ((const mapped *)ch)->places[peer] : -1;
}

static mr_status mapped_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                             mr_channel_request *out, mr_err *err) {
    return mr_channel_post_send(inner_of(ch), place_of(ch, peer), tag, data, bytes, out, err);
}

static mr_status mapped_recv(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                             mr_channel_request *out, mr_err *err) {
    return mr_channel_post_recv(inner_of(ch), place_of(ch, peer), tag, buffer, capacity, out, err);
}

static mr_status mapped_test(mr_channel *ch, mr_channel_request r, mr_completion *out, mr_err *err) {
    return mr_channel_test(inner_of(ch), r, out, err);
}

static bool mapped_cancel(mr_channel *ch, mr_channel_request r) {
    return mr_channel_cancel(inner_of(ch), r);
}

static mr_status mapped_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    return mr_channel_wait(inner_of(ch), deadline_ns, err);
}

static void mapped_progress(mr_channel *ch) {
    mr_channel_progress(inner_of(ch));
}

static void mapped_wake(mr_channel *ch) {
    mr_channel_wake(inner_of(ch));
}

static void mapped_peer_name(const mr_channel *ch, int32_t peer, char out[MR_CHANNEL_NAME_BYTES]) {
    mr_channel_peer_name(((const mapped *)ch)->inner, place_of(ch, peer), out);
}

static const mr_channel_ops mapped_ops = {
    .name = "mapped",
    .post_send = mapped_send,
    .post_recv = mapped_recv,
    .test = mapped_test,
    .cancel = mapped_cancel,
    .wait = mapped_wait,
    .progress = mapped_progress,
    .wake = mapped_wake,
    .peer_name = mapped_peer_name,
};

typedef enum mapping { RANKS_ONLY, COORDINATOR_FIRST, COORDINATOR_LAST, N_MAPPINGS } mapping;
static const char *const MAPPING_NAMES[N_MAPPINGS] = {"ranks", "coordinator first", "coordinator last"};

/* Which endpoint of a test the coordinator is; -1: none. */
static int32_t coordinator_idx(const channel_test *t, mapping how) {
    return how == RANKS_ONLY ? -1 : how == COORDINATOR_FIRST ? 0 : t->n_endpoints - 1;
}

typedef struct part {
    const mpi_world *world;
    const channel_test *test;
    mapping how;
    int32_t self; /* endpoint of the test */
    mr_channel *inner;
} part;

static bool run_part(void *ctx) {
    const part *p = ctx;
    int32_t n = p->test->n_endpoints;
    mapped ch = {.base = {.ops = &mapped_ops, .self = p->self, .n_peers = n}, .inner = p->inner};
    for (int32_t i = 0; i < n; i++)
        ch.places[i] = i == coordinator_idx(p->test, p->how) ? p->world->n_ranks : i;
    endpoint e = {.ch = &ch.base, .self = p->self, .n = n, .seed = suite_seed(), .sends_stay = true};
    return p->test->body(&e);
}

/* The parts of this rank: as a stage, and at rank 0 as the coordinator. */
static bool run_parts(mpi_world *w, const channel_test *t, mapping how) {
    int32_t idx = coordinator_idx(t, how);
    part stage = {w, t, how, w->rank, w->stage}, coordinator = {w, t, how, idx, w->coordinator};
    beside b = {.world = w, .body = run_part, .ctx = &coordinator};
    mr_thread *thread = w->rank == 0 && idx >= 0 ? beside_start(&b) : NULL;
    bool passed = w->rank >= t->n_endpoints || w->rank == idx || run_part(&stage);
    if (thread)
        passed = beside_end(&b, thread) && passed;
    return passed;
}

static bool report(const mpi_world *w, const char *name, const char *how, bool passed, int64_t start_ns) {
    passed = mpi_agree(passed);
    if (w->rank == 0)
        printf("%s %s (%s), %.0f ms\n", passed ? "[ ok ]" : "[FAIL]", name, how,
               (double)(mr_clock_now_ns() - start_ns) / 1e6);
    fflush(stdout);
    return passed;
}

static bool run_suite(mpi_world *w, const channel_test *t) {
    bool ok = true;
    for (; t->name; t++)
        for (mapping how = RANKS_ONLY; how < N_MAPPINGS; how++) {
            int64_t start = mr_clock_now_ns();
            bool last_is_rank = coordinator_idx(t, how) != t->n_endpoints - 1;
            if (t->n_endpoints - !last_is_rank <= w->n_ranks)
                ok = report(w, t->name, MAPPING_NAMES[how], run_parts(w, t, how), start) && ok;
        }
    return ok;
}

static bool run_own(mpi_world *w, const mpi_test *t) {
    bool ok = true;
    for (; t->name; t++) {
        int64_t start = mr_clock_now_ns();
        ok = report(w, t->name, "mpi", t->body(w), start) && ok;
    }
    return ok;
}

/* --- Start and end ----------------------------------------------------------------------------------------------- */

static bool destroy_coordinator(void *ctx) {
    mr_channel_destroy(ctx);
    return true;
}

/* Without a wake after it: mr_mpi_finish may have freed everything. */
static void destroy_main(void *ctx) {
    mr_channel_destroy(ctx);
}

/* Ends with receives posted, at both endpoints. */
static bool finish_with_receives(mpi_world *w) {
    static char bytes[2][10];
    mr_channel_request r;
    bool ok = true;
    for (int i = 0; i < 10 && ok; i++) {
        ok = mr_channel_post_recv(w->stage, w->rank, 77, &bytes[0][i], 1, &r, NULL) == MR_OK;
        if (ok && w->coordinator)
            ok = mr_channel_post_recv(w->coordinator, 0, 77, &bytes[1][i], 1, &r, NULL) == MR_OK;
    }
    ok = mpi_agree(ok);
    mr_thread *t = NULL;
    if (w->coordinator)
        ok = mr_thread_create("coordinator", 0, destroy_main, w->coordinator, &t, NULL) == MR_OK && ok;
    mr_channel_destroy(w->stage);
    mr_mpi_finish(w->mpi);
    mr_thread_join(t);
    return ok;
}

/* Rank 0 has lost a rank, perhaps just now, and leaves without waiting for the others. They are there in truth. */
static bool finish_after_loss(mpi_world *w) {
    if (w->rank != 0) {
        bool ok = mpi_agree(true);
        mr_channel_destroy(w->stage);
        mr_mpi_finish(w->mpi);
        return ok;
    }
    run_beside(w, destroy_coordinator, w->coordinator);
    mr_mpi_peer_lost(w->mpi, w->n_ranks - 1);
    mr_channel_destroy(w->stage);
    mr_mpi_finish(w->mpi);
    bool ok = mpi_agree(true);
    MPI_Finalize();
    return ok;
}

/* The variables of mr_mpi_prepare. MPI starts beside other threads, which read the environment: it must set none. */
static bool has_variables(void) {
    return getenv("OMPI_MCA_btl_vader_single_copy_mechanism") || getenv("OMPI_MCA_btl_tcp_flags");
}

int main(int argc, char **argv) {
    mpi_world w = {0};
    mr_err err;
    mr_mpi_config config = {.max_requests = MAX_REQUESTS, .shares_cores = true};
    const char *mode = argc == 2 ? argv[1] : "suite";
    bool ok = true;
    if (strcmp(mode, "leave") != 0) /* which sends nothing large */
        mr_mpi_prepare();
    const bool had_variables = has_variables();
    snprintf(config.card.host, sizeof config.card.host, "host-of-%d", (int)getpid());
    if (mr_mpi_start(&config, &w.mpi, &err) != MR_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (has_variables() != had_variables)
        printf("[FAIL] mr_mpi_start sets the variables of mr_mpi_prepare\n");
    w.rank = mr_mpi_rank(w.mpi);
    w.n_ranks = mr_mpi_n_ranks(w.mpi);
    w.stage = mr_mpi_stage_channel(w.mpi);
    w.coordinator = w.rank == 0 ? mr_mpi_coordinator_channel(w.mpi) : NULL;
    if (strcmp(mode, "lost") == 0)
        ok = run_own(&w, mpi_lost_tests);
    if (strcmp(mode, "suite") != 0) {
        ok = finish_after_loss(&w) && ok;
    } else {
        ok = run_suite(&w, channel_basic_tests);
        ok = run_suite(&w, channel_load_tests) && ok;
        ok = run_own(&w, mpi_fault_tests) && ok;
        ok = run_suite(&w, channel_cancel_tests) && ok; /* last: what cannot be taken back keeps its slot */
        ok = finish_with_receives(&w) && ok;
    }
    if (w.rank == 0)
        printf("%s\n", ok ? "all passed" : "FAILED");
    return ok ? 0 : 1;
}
