/* coordinator/session/rank.c - the threads of a rank, its start and its end. */
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "coordinator/session/rank_internal.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "worker/lobby/lobby.h"
#include "worker/stage/devices_check.h"

enum {
    MAX_REQUESTS = 1 << 14, /* posted by one endpoint */
    EXIT_TERMINATED = 128 + SIGTERM,
};
static const int64_t END_PATIENCE_NS = MR_NS_PER_S, INTERRUPT_PATIENCE_NS = 3 * MR_NS_PER_S,
                     FOLLOW_PATIENCE_NS = 20 * MR_NS_PER_S, SIGNAL_LOOK_NS = 50 * MR_NS_PER_MS,
                     FIRST_WORD_NS = MR_NS_PER_S;

static atomic_bool left_behind, signalled;

void mr_rank_mpi_library(char *out, size_t bytes) {
    char name[MR_MPI_LIBRARY_BYTES];
    mr_mpi_library(name);
    snprintf(out, bytes, "%s", name);
}

void mr_rank_prepare(void) {
    mr_mpi_prepare();
}

bool mr_rank_left_behind(void) {
    return atomic_load(&left_behind);
}

bool rank_signalled(void) {
    return atomic_load(&signalled);
}

/* --- The step thread --------------------------------------------------------------------------------------------- */

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

/* MPI starts a world of one process if it cannot reach its launcher's daemon. This check finds that. */
static mr_status check_world(const rank_process *p, mr_mpi *mpi, mr_err *err) {
    int32_t rank = mr_mpi_rank(mpi), n_ranks = mr_mpi_n_ranks(mpi);
    const mr_rank_place *place = &p->config.place;
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
    (void)rank_this_host(config.card.host);
    snprintf(config.card.lifeline, sizeof config.card.lifeline, "%s", p->address);
    mr_status status = mr_mpi_start(&config, out, err);
    return status == MR_OK ? check_world(p, *out, err) : status;
}

/* Binds each thread to a CPU if the threads fill the share. Otherwise the system may keep two busy threads on one
 * CPU. */
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
    return status == MR_OK ? mr_devices_check(out_devices, err) : status;
}

static void run_rank(void *ctx) {
    rank_process *p = ctx;
    mr_backend *backend = NULL;
    mr_devices devices = {0};
    mr_mpi *mpi = NULL;
    mr_err err, problem;
    mr_status status = rank_meet(p, &err);
    if (status == MR_OK)
        status = start_mpi(p, &mpi, &err);
    if (status == MR_OK)
        status = rank_meet_over_mpi(p, mpi, &err);
    if (status != MR_OK) {
        note_failure(p, status, &err);
        set_state(p, RANK_ENDED, NULL);
        return;
    }
    mr_mpi_stage_channel(mpi)->secret = &p->plane;
    if (p->config.place.rank == 0)
        mr_mpi_coordinator_channel(mpi)->secret = &p->plane;
    set_state(p, RANK_RUNNING, mpi);
    if (p->early_loss)
        mr_mpi_peer_lost(mpi, p->early_loss);
    mr_lobby_config lobby = {.model_path = p->config.model_path,
                             .cache_dir = p->config.cache_dir,
                             .channel = mr_mpi_stage_channel(mpi),
                             .coordinator = mr_mpi_n_ranks(mpi),
                             .n_threads = p->n_threads,
                             .verifies_weights = p->config.verifies_weights,
                             .runs_steps = &p->runs_steps,
                             .n_signals = &p->n_signals,
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
    p->abandoned = abandoned;
    if (status != MR_OK || abandoned) /* the coordinator in this process stops waiting; MPI is not finalized */
        mr_mpi_peer_lost(mpi, p->config.place.rank);
    mr_mpi_serve(mpi);
    set_state(p, RANK_FINISHING, NULL);
    mr_mpi_finish(mpi);
    mr_launcher_close(p->launcher);
    set_state(p, RANK_ENDED, NULL);
}

/* --- Start and end ----------------------------------------------------------------------------------------------- */

static mr_status create(const mr_rank_config *config, rank_process **out, mr_err *err) {
    rank_process *p = mr_alloc(sizeof *p);
    if (!p)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a rank");
    *p = (rank_process){.config = *config};
    mr_mutex_init(&p->lock);
    mr_cond_init(&p->changed);
    mr_log_set_rank(config->place.rank);
    rank_place_share(&config->place, &p->share);
    p->parent = getppid();
    p->start_ns = mr_clock_now_ns();
    p->n_threads = config->n_threads ? config->n_threads : p->share.n_cores;
    if (config->problem) {
        p->problem = *config->problem;
        p->config.problem = &p->problem;
    }
    if (config->model_path)
        p->config.model_path = p->model_path = mr_strdup(config->model_path);
    if (config->cache_dir)
        p->config.cache_dir = p->cache_dir = mr_strdup(config->cache_dir);
    p->hosts = mr_alloc_array((size_t)config->place.n_ranks, sizeof *p->hosts);
    p->is_idle = mr_alloc_array((size_t)config->place.n_ranks, sizeof *p->is_idle);
    p->is_lost = mr_alloc_array((size_t)config->place.n_ranks, sizeof *p->is_lost);
    *out = p;
    if ((config->model_path && !p->model_path) || (config->cache_dir && !p->cache_dir) || !p->hosts || !p->is_idle ||
        !p->is_lost)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a rank of %d", (int)config->place.n_ranks);
    mr_status status = config->place.rank == 0 ? rank_listen(p, err) : MR_OK;
    if (status == MR_OK)
        status = mr_thread_create("step", 0, run_rank, p, &p->step_thread, err);
    return status == MR_OK ? mr_thread_create("launcher", 0, rank_watch_launcher, p, &p->watch_thread, err) : status;
}

bool rank_wait_for_state(rank_process *p, rank_state state, int64_t deadline_ns) {
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

/* Whether a signal is pending at a follower, which blocks the signals that end it. */
static bool signal_has_come(void) {
    const struct timespec none = {0};
    sigset_t set;
    signals_that_end(&set);
    return sigtimedwait(&set, NULL, &none) >= 0;
}

/* At a follower: counts SIGUSR1, which drains this rank, or ends its drain. The step thread tells the coordinator. */
static void take_drain_signals(rank_process *p) {
    const struct timespec none = {0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    if (sigtimedwait(&set, NULL, &none) < 0)
        return;
    atomic_fetch_add(&p->n_signals, 1);
    mr_mutex_lock(&p->lock);
    if (p->mpi)
        mr_channel_wake(mr_mpi_stage_channel(p->mpi));
    mr_mutex_unlock(&p->lock);
}

/* At a follower: whether rank 0 has ended in order. */
static bool goodbye_said(rank_process *p) {
    mr_mutex_lock(&p->lock);
    bool said = p->goodbye;
    mr_mutex_unlock(&p->lock);
    return said;
}

/* At a follower: whether a lifeline to rank 0 exists, so that rank 0's end will be noticed. */
static bool has_lifeline(rank_process *p) {
    mr_mutex_lock(&p->lock);
    bool has = p->has_met || p->state >= RANK_RUNNING;
    mr_mutex_unlock(&p->lock);
    return has;
}

/* Looks whether MPI runs or has failed to start, and whether the lifelines are connected. */
static mr_status look_at_start(rank_process *p, bool *out_done, mr_err *err) {
    bool runs = rank_wait_for_state(p, RANK_RUNNING, mr_clock_now_ns() + SIGNAL_LOOK_NS), met = false;
    mr_mutex_lock(&p->lock);
    mr_status status = p->status;
    if (status != MR_OK)
        *err = p->err;
    mr_mutex_unlock(&p->lock);
    if (status == MR_OK)
        status = rank_check_meeting(p, false, &met, err);
    *out_done = runs && met;
    return status;
}

static mr_status start_timeout(rank_process *p, mr_err *err) {
    bool met = true;
    mr_status status = rank_check_meeting(p, true, &met, err);
    if (status != MR_OK)
        return status;
    return mr_err_set(err, MR_E_TIMEOUT,
                      "MPI has not started within %d s: of %d ranks some do not run, or their hosts do not reach "
                      "each other; hint: a firewall, or the wrong network (--mca btl_tcp_if_include)",
                      (int)(p->config.patience_ns / MR_NS_PER_S), (int)p->config.place.n_ranks);
}

/* Handles a signal that should end this follower. Rank 0 got the signal too and ends all ranks in order, so this rank
 * waits for rank 0. A second signal, or a signal while there is no lifeline to wait on, ends the process at once. */
static void take_signal(bool waits) {
    if (signal_has_come() && (atomic_exchange(&signalled, true) || !waits))
        _exit(EXIT_TERMINATED);
}

static mr_status wait_for_mpi(rank_process *p, mr_err *err) {
    bool done = false, follows = p->config.place.rank != 0;
    /* Followers wait longer, so that rank 0 can report the timeout for all ranks. */
    int64_t deadline = p->start_ns + p->config.patience_ns + (follows ? FOLLOW_PATIENCE_NS : 0);
    mr_status status = MR_OK;
    while ((status = look_at_start(p, &done, err)) == MR_OK && !done) {
        if (mr_rank_loss_reported())
            return mr_err_set(err, MR_E_PEER_LOST, "%s", "");
        if (mr_interrupt_seen() || goodbye_said(p))
            return mr_err_set(err, MR_E_CANCELLED, "%s", "");
        if (follows) {
            take_signal(has_lifeline(p));
            take_drain_signals(p);
        }
        if (mr_clock_now_ns() >= deadline)
            return start_timeout(p, err);
    }
    return status;
}

/* Waits until mpirun has sent a signal, for FIRST_WORD_NS at most. mpirun takes the status of the first process that
 * ends. If this rank exited first, its status would hide the lost rank's. */
static void wait_for_signal(const rank_process *p) {
    int64_t end_ns = mr_clock_now_ns() + FIRST_WORD_NS;
    while (!(p->config.place.rank == 0 ? mr_interrupt_seen() : signal_has_come()) && mr_clock_now_ns() < end_ns)
        (void)nanosleep(&(struct timespec){.tv_nsec = SIGNAL_LOOK_NS}, NULL);
}

/* Frees p unless its step thread cannot be ended. */
static void release(rank_process *p, int64_t patience_ns) {
    if (mr_rank_loss_reported())
        wait_for_signal(p);
    mr_lifeline_close(p->lifeline);
    p->lifeline = NULL;
    if (p->step_thread && !rank_wait_for_state(p, RANK_ENDED, mr_clock_now_ns() + patience_ns)) {
        atomic_store(&left_behind, true);
        return;
    }
    set_state(p, RANK_ENDED, NULL); /* ends the watch thread, also if no step thread was started */
    mr_thread_join(p->step_thread);
    mr_thread_join(p->watch_thread);
    mr_cond_deinit(&p->changed);
    mr_mutex_deinit(&p->lock);
    mr_free(p->model_path);
    mr_free(p->cache_dir);
    mr_free(p->hosts);
    mr_free(p->is_idle);
    mr_free(p->is_lost);
    mr_free(p);
}

mr_status rank_start(const mr_rank_config *config, rank_process **out, mr_err *err) {
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
    /* Without an error, the other ranks may take a while to free their memory. mpirun counts it as a failure if this
     * rank leaves before them; so a server on a busy machine needs a while, too, when a signal ends it in order. */
    int64_t patience_ns = mr_interrupt_seen() ? INTERRUPT_PATIENCE_NS : FOLLOW_PATIENCE_NS;
    release(p, well && !mr_rank_loss_reported() ? patience_ns : END_PATIENCE_NS);
}

/* --- Followers --------------------------------------------------------------------------------------------------- */

/* Waits until the step thread is done, or rank 0 has ended. */
static void wait_and_watch(rank_process *p) {
    while (!rank_wait_for_state(p, RANK_FINISHING, mr_clock_now_ns() + SIGNAL_LOOK_NS) && !goodbye_said(p)) {
        take_signal(true);
        take_drain_signals(p);
    }
}

static int report(int32_t rank, mr_err *err) {
    char host[RANK_HOST_BYTES];
    mr_err_prefix(err, "rank %d on %s", (int)rank, rank_this_host(host));
    mr_output_error(err);
    return RANK_EXIT_FAILED;
}

int mr_rank_follow(const mr_rank_config *config) {
    rank_process *p = NULL;
    sigset_t set;
    mr_err err;
    signals_that_end(&set);
    sigaddset(&set, SIGUSR1);
    if (config->serves) {
        sigdelset(&set, SIGHUP); /* a blocked signal would stay pending instead of being ignored */
        signal(SIGHUP, SIG_IGN);
    }
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    mr_status status = create(config, &p, &err);
    if (status == MR_OK)
        status = wait_for_mpi(p, &err);
    if (status == MR_E_CANCELLED) {
        if (!rank_signalled())
            wait_for_signal(p); /* rank 0 has reported the cause, and its status should be the first */
        _exit(rank_signalled() ? EXIT_TERMINATED : RANK_EXIT_FAILED);
    }
    if (status != MR_OK)
        _exit(report(config->place.rank, &err));
    wait_and_watch(p);
    mr_mutex_lock(&p->lock);
    status = p->status;
    err = p->err;
    mr_mutex_unlock(&p->lock);
    if (status != MR_OK)
        _exit(report(config->place.rank, &err)); /* without a goodbye, so that rank 0 notices a death */
    if (p->abandoned)
        wait_for_signal(p);
    release(p, FOLLOW_PATIENCE_NS);
    return 0;
}
