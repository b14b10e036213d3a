// SPDX-License-Identifier: Apache-2.0
#include "coordinator/program/rank.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/program/interrupt.h"
#include "coordinator/program/output.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "proto/channel_mpi.h"
#include "proto/lifeline.h"
#include "worker/lobby.h"

enum {
    MAX_REQUESTS = 1 << 14, /* posted by one endpoint */
    HOST_BYTES = sizeof((mr_mpi_card *)0)->host,
    EXIT_FAILED = 1,
    LEAVE_AFTER_NS = 300000000,
    EXIT_TERMINATED = 128 + SIGTERM,
};
static const int64_t LIFELINE_PATIENCE_NS = 5 * MR_NS_PER_S, END_PATIENCE_NS = MR_NS_PER_S,
                     FOLLOW_PATIENCE_NS = 20 * MR_NS_PER_S, SIGNAL_LOOK_NS = 50 * MR_NS_PER_MS,
                     SIGNAL_GRACE_NS = 400 * MR_NS_PER_MS, FIRST_WORD_NS = MR_NS_PER_S;

typedef enum rank_state { RANK_STARTING, RANK_RUNNING, RANK_FINISHING, RANK_ENDED } rank_state;

struct rank_process {
    rank_config config;
    char *model_path, *cache_dir; /* copies, for a step thread that is left behind */
    mr_err problem;
    rank_share share;
    int32_t n_threads;
    mr_thread *step_thread;
    mr_lifeline *lifeline;
    mr_mutex lock; /* guards what follows */
    mr_cond changed;
    rank_state state;
    mr_status status; /* of the step thread */
    mr_err err;
    mr_mpi *mpi;        /* NULL before it runs, and when it ends */
    mr_mpi_card first;  /* of rank 0, once it runs */
    bool goodbye;       /* of rank 0 */
    int32_t early_loss; /* a rank that was lost before mpi was there; 0: none */
};

static atomic_bool loss_reported, left_behind, signalled;

bool rank_loss_reported(void) {
    return atomic_load(&loss_reported);
}

bool rank_left_behind(void) {
    return atomic_load(&left_behind);
}

/* The name of this host; returns out. */
static const char *host_name(char out[HOST_BYTES]) {
    memset(out, 0, HOST_BYTES);
    if (gethostname(out, HOST_BYTES - 1) != 0)
        strcpy(out, "?");
    return out;
}

/* --- The step thread ---------------------------------------------------------------------------------------------------- */

static void set_state(rank_process *p, rank_state state, mr_mpi *mpi) {
    mr_mutex_lock(&p->lock);
    p->state = state;
    p->mpi = mpi;
    mr_cond_broadcast(&p->changed);
    mr_mutex_unlock(&p->lock);
}

static void note_failure(rank_process *p, mr_status status, const mr_err *err) {
    mr_mutex_lock(&p->lock);
    p->status = status;
    p->err = *err;
    mr_mutex_unlock(&p->lock);
}

/* Without the daemon of its launcher, MPI starts a world of one. */
static mr_status check_world(const rank_process *p, mr_mpi *mpi, mr_err *err) {
    int32_t rank = mr_mpi_rank(mpi), n_ranks = mr_mpi_n_ranks(mpi);
    const rank_place *place = &p->config.place;
    if (rank == place->rank && n_ranks == place->n_ranks)
        return MR_OK;
    mr_channel_destroy(mr_mpi_stage_channel(mpi));
    if (rank == 0)
        mr_channel_destroy(mr_mpi_coordinator_channel(mpi));
    mr_mpi_finish(mpi);
    return mr_err_set(err, MR_E_IO,
                      "the environment says that this is rank %d of %d, but MPI finds %d of %d: no MPI daemon can be "
                      "reached; hint: start it with mpirun, or without OMPI_* and PMI* variables",
                      (int)place->rank, (int)place->n_ranks, (int)rank, (int)n_ranks);
}

static mr_status start_mpi(rank_process *p, mr_mpi **out, mr_err *err) {
    mr_mpi_config config = {.max_requests = MAX_REQUESTS,
                            .shares_cores = p->share.n_cpus == 0 || p->n_threads > p->share.n_cores};
    (void)host_name(config.card.host);
    if (p->lifeline)
        snprintf(config.card.lifeline, sizeof config.card.lifeline, "%s", mr_lifeline_address(p->lifeline));
    mr_status status = mr_mpi_start(&config, out, err);
    return status == MR_OK ? check_world(p, *out, err) : status;
}

/* Binds threads one by one where they fill the share: the system may put two busy ones on one CPU for long. */
static mr_status create_backends(const rank_process *p, mr_backend **out, mr_devices *out_devices, mr_err *err) {
    bool fill = p->share.n_cpus == p->n_threads;
    mr_cpu_options options = {
        .n_threads = p->n_threads, .adapts = p->config.n_threads == 0, .cpu_ids = fill ? p->share.cpu_ids : NULL};
    rank_place_take_share(&p->share);
    if (fill && mr_thread_pin(p->share.cpu_ids[0], err) != MR_OK)
        mr_log_write(MR_LOG_DEBUG, "rank", "the step thread is not bound to a CPU: %s", err->text);
    mr_status status = mr_cpu_backend_create(&options, out, err);
    if (status == MR_OK)
        status = mr_devices_create(&p->config.devices, p->n_threads, options.cpu_ids, out_devices, err);
    return status;
}

static void run_rank(void *ctx) {
    rank_process *p = ctx;
    mr_backend *backend = NULL;
    mr_devices devices = {0};
    mr_mpi *mpi = NULL;
    mr_err err, problem;
    mr_status status = start_mpi(p, &mpi, &err);
    if (status != MR_OK) {
        note_failure(p, status, &err);
        set_state(p, RANK_ENDED, NULL);
        return;
    }
    p->first = *mr_mpi_card_of(mpi, 0);
    set_state(p, RANK_RUNNING, mpi);
    if (p->early_loss)
        mr_mpi_peer_lost(mpi, p->early_loss);
    mr_lobby_config lobby = {.model_path = p->config.model_path,
                             .cache_dir = p->config.cache_dir,
                             .channel = mr_mpi_stage_channel(mpi),
                             .coordinator = mr_mpi_n_ranks(mpi),
                             .n_threads = p->n_threads,
                             .problem = p->config.problem};
    if (!lobby.problem && create_backends(p, &backend, &devices, &problem) != MR_OK)
        lobby.problem = &problem;
    lobby.backend = backend;
    lobby.devices = &devices;
    bool abandoned = false;
    status = mr_lobby_run(&lobby, &abandoned, &err);
    mr_channel_destroy(lobby.channel);
    mr_devices_destroy(&devices);
    mr_backend_destroy(backend);
    if (status != MR_OK)
        note_failure(p, status, &err);
    if (status != MR_OK || abandoned) /* the coordinator of this process waits for it no more, MPI is left as it is */
        mr_mpi_peer_lost(mpi, p->config.place.rank);
    mr_mpi_serve(mpi);
    set_state(p, RANK_FINISHING, NULL);
    mr_mpi_finish(mpi);
    set_state(p, RANK_ENDED, NULL);
}

/* --- The lifeline ------------------------------------------------------------------------------------------------------- */

/* The other ranks end themselves when rank 0 is gone; the first of them says so. Not at once: mpirun is to hear of rank 0
 * first, whose status is the one that counts. */
static void leave(const rank_process *p, const char *why) {
    mr_err err;
    (void)mr_err_set(&err, MR_E_PEER_LOST, "rank 0 on %s is gone: %s", p->first.host, why);
    if (p->config.place.rank == 1 && !atomic_load(&signalled))
        output_error(&err);
    (void)nanosleep(&(struct timespec){.tv_nsec = LEAVE_AFTER_NS}, NULL);
    _exit(EXIT_FAILED);
}

/* At rank 0: what is posted with the rank ends, and the user hears of the first loss. */
static void note_loss(rank_process *p, int32_t rank, const char *why) {
    char host[HOST_BYTES] = "?";
    mr_err err;
    mr_mutex_lock(&p->lock);
    if (p->mpi) {
        memcpy(host, mr_mpi_card_of(p->mpi, rank)->host, HOST_BYTES);
        mr_mpi_peer_lost(p->mpi, rank);
    } else {
        p->early_loss = rank;
    }
    mr_mutex_unlock(&p->lock);
    (void)mr_err_set(&err, MR_E_PEER_LOST, "rank %d on %s is gone: %s", (int)rank, host, why);
    if (!interrupt_seen() && !atomic_exchange(&loss_reported, true))
        output_error(&err);
}

/* On the lifeline's thread. */
static void on_lost(void *ctx, int32_t rank, const char *why) {
    rank_process *p = ctx;
    if (p->config.place.rank == 0 && why) {
        note_loss(p, rank, why);
    } else if (p->config.place.rank != 0 && why) {
        leave(p, why);
    } else if (p->config.place.rank != 0) {
        mr_mutex_lock(&p->lock);
        p->goodbye = true;
        mr_mutex_unlock(&p->lock);
    }
}

/* A job without it works; only a death is noticed later, by mpirun. */
static void connect_lifeline(rank_process *p) {
    char host[HOST_BYTES];
    mr_err err;
    if (!p->first.lifeline[0])
        return;
    if (mr_lifeline_connect(p->first.lifeline, p->config.place.rank, mr_clock_now_ns() + LIFELINE_PATIENCE_NS, on_lost,
                            p, &p->lifeline, &err) != MR_OK)
        output_warning("rank %d on %s has no lifeline to rank 0 on %s, so a death may be noticed late: %s",
                       (int)p->config.place.rank, host_name(host), p->first.host, err.text);
}

/* --- Start and end ------------------------------------------------------------------------------------------------------ */

static mr_status create(const rank_config *config, rank_process **out, mr_err *err) {
    rank_process *p = mr_alloc(sizeof *p);
    if (!p)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a rank");
    *p = (rank_process){.config = *config};
    mr_mutex_init(&p->lock);
    mr_cond_init(&p->changed);
    mr_log_set_rank(config->place.rank);
    rank_place_share(&config->place, &p->share);
    p->n_threads = config->n_threads ? config->n_threads : p->share.n_cores;
    if (config->problem) {
        p->problem = *config->problem;
        p->config.problem = &p->problem;
    }
    if (config->model_path)
        p->config.model_path = p->model_path = mr_strdup(config->model_path);
    if (config->cache_dir)
        p->config.cache_dir = p->cache_dir = mr_strdup(config->cache_dir);
    *out = p;
    if ((config->model_path && !p->model_path) || (config->cache_dir && !p->cache_dir))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a path");
    if (config->place.rank == 0 && mr_lifeline_listen(config->place.n_ranks, on_lost, p, &p->lifeline, err) != MR_OK)
        output_warning("the ranks have no lifeline, so a death may be noticed late: %s", err->text);
    return mr_thread_create("step", 0, run_rank, p, &p->step_thread, err);
}

/* Waits until the state is at least the given one; false at the deadline. */
static bool wait_for_state(rank_process *p, rank_state state, int64_t deadline_ns) {
    mr_mutex_lock(&p->lock);
    while (p->state < state && mr_cond_wait_until(&p->changed, &p->lock, deadline_ns))
        continue;
    bool reached = p->state >= state;
    mr_mutex_unlock(&p->lock);
    return reached;
}

static void signals_that_end(sigset_t *out) {
    sigemptyset(out);
    sigaddset(out, SIGINT);
    sigaddset(out, SIGTERM);
    sigaddset(out, SIGHUP);
}

/* Of a follower, where they are blocked. */
static bool signal_has_come(void) {
    const struct timespec none = {0};
    sigset_t set;
    signals_that_end(&set);
    return sigtimedwait(&set, NULL, &none) >= 0;
}

static mr_status wait_for_mpi(rank_process *p, mr_err *err) {
    /* The others give rank 0 the time to say it for all. */
    int64_t deadline = mr_clock_now_ns() + p->config.patience_ns + (p->config.place.rank == 0 ? 0 : FOLLOW_PATIENCE_NS);
    while (!wait_for_state(p, RANK_RUNNING, mr_clock_now_ns() + SIGNAL_LOOK_NS) && mr_clock_now_ns() < deadline)
        if (interrupt_seen() || (p->config.place.rank != 0 && signal_has_come()))
            return mr_err_set(err, MR_E_CANCELLED, "%s", "");
    if (!wait_for_state(p, RANK_RUNNING, deadline))
        return mr_err_set(err, MR_E_TIMEOUT,
                          "MPI has not started within %d s: of %d ranks some do not run, or their hosts do not reach "
                          "each other; hint: a firewall, or the wrong network (--mca btl_tcp_if_include)",
                          (int)(p->config.patience_ns / MR_NS_PER_S), (int)p->config.place.n_ranks);
    mr_mutex_lock(&p->lock);
    mr_status status = p->status;
    if (status != MR_OK)
        *err = p->err;
    mr_mutex_unlock(&p->lock);
    return status;
}

/* mpirun is to hear of a lost rank before it hears of this one, whose end would be the status that counts; it then ends
 * this one by a signal. */
static void wait_for_signal(int64_t patience_ns) {
    for (int64_t end_ns = mr_clock_now_ns() + patience_ns; !interrupt_seen() && mr_clock_now_ns() < end_ns;)
        (void)nanosleep(&(struct timespec){.tv_nsec = SIGNAL_LOOK_NS}, NULL);
}

/* Frees p unless its step thread cannot be ended. */
static void release(rank_process *p, int64_t patience_ns) {
    if (rank_loss_reported())
        wait_for_signal(FIRST_WORD_NS);
    mr_lifeline_close(p->lifeline);
    p->lifeline = NULL;
    if (p->step_thread && !wait_for_state(p, RANK_ENDED, mr_clock_now_ns() + patience_ns)) {
        atomic_store(&left_behind, true);
        return;
    }
    mr_thread_join(p->step_thread);
    mr_cond_deinit(&p->changed);
    mr_mutex_deinit(&p->lock);
    mr_free(p->model_path);
    mr_free(p->cache_dir);
    mr_free(p);
}

mr_status rank_start(const rank_config *config, rank_process **out, mr_err *err) {
    rank_process *p = NULL;
    mr_status status = create(config, &p, err);
    if (status == MR_OK)
        status = wait_for_mpi(p, err);
    if (status != MR_OK) {
        if (p)
            release(p, END_PATIENCE_NS);
        return status;
    }
    *out = p;
    return MR_OK;
}

mr_channel *rank_channel(rank_process *p) {
    return mr_mpi_coordinator_channel(p->mpi);
}

int32_t rank_threads(const rank_process *p) {
    return p->n_threads;
}

void rank_end(rank_process *p, bool well) {
    if (!p)
        return;
    mr_channel_destroy(rank_channel(p));
    /* Where all is well, the others may take a while to give their memory back. */
    release(p, well && !rank_loss_reported() && !interrupt_seen() ? FOLLOW_PATIENCE_NS : END_PATIENCE_NS);
}

/* --- The others ----------------------------------------------------------------------------------------------------------- */

static bool goodbye_said(rank_process *p) {
    mr_mutex_lock(&p->lock);
    bool said = p->goodbye;
    mr_mutex_unlock(&p->lock);
    return said;
}

/* Waits until the step thread is done, or rank 0 has left. On a signal it goes on for a moment: where all ranks were told
 * to end, rank 0 has the word, and should not take this end for a death. */
static void wait_and_watch(rank_process *p) {
    while (!wait_for_state(p, RANK_FINISHING, mr_clock_now_ns() + SIGNAL_LOOK_NS) && !goodbye_said(p)) {
        if (!signal_has_come())
            continue;
        atomic_store(&signalled, true);
        (void)wait_for_state(p, RANK_ENDED, mr_clock_now_ns() + SIGNAL_GRACE_NS);
        _exit(EXIT_TERMINATED);
    }
}

static int report(int32_t rank, mr_err *err) {
    char host[HOST_BYTES];
    mr_err_prefix(err, "rank %d on %s", (int)rank, host_name(host));
    output_error(err);
    return EXIT_FAILED;
}

int rank_follow(const rank_config *config) {
    rank_process *p = NULL;
    sigset_t set;
    mr_err err;
    signals_that_end(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    mr_status status = create(config, &p, &err);
    if (status == MR_OK)
        status = wait_for_mpi(p, &err);
    if (status == MR_E_CANCELLED)
        _exit(EXIT_TERMINATED);
    if (status != MR_OK)
        _exit(report(config->place.rank, &err));
    connect_lifeline(p);
    wait_and_watch(p);
    mr_mutex_lock(&p->lock);
    status = p->status;
    err = p->err;
    mr_mutex_unlock(&p->lock);
    if (status != MR_OK)
        _exit(report(config->place.rank, &err)); /* without a goodbye: for rank 0 this is a death */
    release(p, FOLLOW_PATIENCE_NS);
    return 0;
}
