/* coordinator/session/rank_meeting.c - how a rank finds the others before MPI starts, and learns of deaths afterwards.
 * MPI_Init waits for all ranks without a time limit, so the lifelines are connected before it. Rank 0 stores its
 * address with the launcher, and the other ranks fetch the address there. So a rank that never comes is noticed after a
 * deadline, and can be named. */
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "coordinator/session/rank_internal.h"
#include "engine/base/clock.h"

static const char ADDRESS_KEY[] = "millrace.lifeline";
/* FOLLOW_NS: the other ranks wait this much longer for rank 0 than it does for them, so that rank 0 reports first. A
 * rank that rank 0 refuses gives up after REFUSED_NS, and this much earlier than rank 0 at the latest, because it alone
 * can name the likely cause. */
static const int64_t REFUSED_NS = 10 * MR_NS_PER_S, FOLLOW_NS = 2 * MR_NS_PER_S, RETRY_NS = 200 * MR_NS_PER_MS,
                     LAUNCHER_LOOK_NS = 200 * MR_NS_PER_MS, LEAVE_AFTER_NS = 300 * MR_NS_PER_MS;

static atomic_bool loss_reported, any_lost;

bool mr_rank_loss_reported(void) {
    return atomic_load(&loss_reported);
}

bool rank_any_lost(void) {
    return atomic_load(&any_lost);
}

void rank_set_idle(rank_process *p, int32_t rank, bool is_idle) {
    mr_mutex_lock(&p->lock);
    p->is_idle[rank] = is_idle;
    mr_mutex_unlock(&p->lock);
}

void rank_allow_losses(rank_process *p) {
    mr_mutex_lock(&p->lock);
    p->allows_losses = true;
    mr_mutex_unlock(&p->lock);
}

bool rank_is_lost(rank_process *p, int32_t rank) {
    mr_mutex_lock(&p->lock);
    bool is_lost = p->is_lost[rank];
    mr_mutex_unlock(&p->lock);
    return is_lost;
}

int64_t rank_take_silence_ns(rank_process *p) {
    mr_mutex_lock(&p->lock);
    int64_t ns = p->silent_ns;
    p->silent_ns = 0;
    mr_mutex_unlock(&p->lock);
    return ns;
}

static void sleep_ns(int64_t ns) {
    (void)nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

const char *rank_this_host(char out[RANK_HOST_BYTES]) {
    memset(out, 0, RANK_HOST_BYTES);
    if (gethostname(out, RANK_HOST_BYTES - 1) != 0)
        strcpy(out, "?");
    return out;
}

const char *rank_host(rank_process *p, int32_t rank, char out[RANK_HOST_BYTES]) {
    mr_mutex_lock(&p->lock);
    memcpy(out, p->hosts[rank], RANK_HOST_BYTES);
    mr_mutex_unlock(&p->lock);
    if (!out[0])
        strcpy(out, "an unknown host");
    return out;
}

/* --- Deaths: on the lifeline's thread ---------------------------------------------------------------------------- */

/* Ends this process after the loss of rank 0. Rank 1 reports the loss for all. The short wait lets mpirun notice rank
 * 0's end first, because the first status counts. */
static void leave(rank_process *p, const char *why) {
    char host[RANK_HOST_BYTES];
    mr_err err;
    (void)mr_err_set(&err, MR_E_PEER_LOST, "rank 0 on %s is gone: %s", rank_host(p, 0, host), why);
    if (p->config.recovers) /* it may be this rank's own network that failed, and the job goes on */
        mr_output_warning("rank %d ends: %s", (int)p->config.place.rank, err.text);
    else if (p->config.place.rank == 1 && !rank_signalled())
        mr_output_error(&err);
    sleep_ns(LEAVE_AFTER_NS);
    _exit(RANK_EXIT_FAILED);
}

/* At rank 0, after the loss of a rank: ends the requests that were posted with the rank. The user is told of the first
 * loss that ends the job, and of every loss that does not. */
static void note_loss(rank_process *p, int32_t rank, const char *why, int64_t silent_ns) {
    char host[RANK_HOST_BYTES];
    mr_err err;
    mr_mutex_lock(&p->lock);
    bool is_idle = p->is_idle[rank], is_allowed = p->allows_losses;
    p->is_lost[rank] = true;
    p->silent_ns = silent_ns > p->silent_ns ? silent_ns : p->silent_ns;
    if (p->mpi)
        mr_mpi_peer_lost(p->mpi, rank);
    else
        p->early_loss = rank;
    mr_mutex_unlock(&p->lock);
    atomic_store(&any_lost, true);
    (void)mr_err_set(&err, MR_E_PEER_LOST, "rank %d on %s is gone: %s", (int)rank, rank_host(p, rank, host), why);
    if (mr_interrupt_seen())
        return;
    if (is_idle)
        mr_output_warning("%s; it holds no stage, so the others go on", err.text);
    else if (is_allowed)
        mr_output_warning("%s; the others take over its layers", err.text);
    else if (!atomic_exchange(&loss_reported, true))
        mr_output_error(&err);
}

static void on_lost(void *ctx, int32_t rank, const char *why, int64_t silent_ns) {
    rank_process *p = ctx;
    if (p->config.place.rank == 0 && why) {
        note_loss(p, rank, why, silent_ns);
    } else if (p->config.place.rank != 0 && why) {
        leave(p, why);
    } else if (p->config.place.rank != 0) {
        mr_mutex_lock(&p->lock);
        p->goodbye = true;
        mr_mutex_unlock(&p->lock);
    }
}

/* At the other ranks, once in a beat: whether the step thread hangs. */
static bool hangs(void *ctx) {
    rank_process *p = ctx;
    struct timespec cpu = {0};
    (void)clock_gettime(p->step_clock, &cpu);
    step_look look = {.cpu_ns = (int64_t)cpu.tv_sec * MR_NS_PER_S + cpu.tv_nsec,
                      .waits_for_disk = step_watch_waits_for_disk};
    mr_mutex_lock(&p->lock);
    look.may_look = p->mpi != NULL;
    look.n_looks = p->mpi ? mr_mpi_n_looks(p->mpi) : 0;
    look.runs_steps = atomic_load(&p->runs_steps);
    mr_mutex_unlock(&p->lock);
    return step_watch_hangs(&p->watch, &look);
}

/* --- The meeting ------------------------------------------------------------------------------------------------- */

void rank_dismiss(void) {
    mr_err err;
    mr_launcher *launcher = mr_launcher_open();
    if (launcher && mr_launcher_put(launcher, ADDRESS_KEY, "", &err) != MR_OK)
        mr_output_warning("the other ranks cannot be told that rank 0 does not start: %s", err.text);
    mr_launcher_close(launcher);
}

mr_status rank_listen(rank_process *p, mr_err *err) {
    char host[RANK_HOST_BYTES];
    mr_status status = mr_secret_find(&p->launch, err);
    if (status == MR_OK)
        status = mr_lifeline_listen(p->config.place.n_ranks, &p->launch, on_lost, p, &p->lifeline, err);
    if (status == MR_OK) {
        p->plane = mr_lifeline_secret(p->lifeline);
        snprintf(p->address, sizeof p->address, "%s", mr_lifeline_address(p->lifeline));
        return MR_OK;
    }
    rank_dismiss();
    return mr_err_prefix(err, "rank 0 on %s has no lifeline for the others", rank_this_host(host));
}

static void learn_hosts(rank_process *p) {
    char host[RANK_HOST_BYTES] = "";
    for (int32_t i = 0; i < p->config.place.n_ranks; i++) {
        mr_launcher_host(p->launcher, i, host, sizeof host);
        mr_mutex_lock(&p->lock);
        memcpy(p->hosts[i], host, sizeof host);
        mr_mutex_unlock(&p->lock);
    }
}

/* Rank 0 cannot be reached. Rank 1 alone reports the error. */
static mr_status without_rank_0(const rank_process *p, mr_status status, mr_err *err) {
    return p->config.place.rank == 1 ? status : mr_err_set(err, MR_E_CANCELLED, "%s", "");
}

static mr_status connect_lifeline(rank_process *p, const char *address, int64_t deadline_ns, mr_err *err) {
    int64_t refused_ns = mr_clock_now_ns() + REFUSED_NS, latest_ns = deadline_ns - 2 * FOLLOW_NS;
    const mr_lifeline_wish wish = {.self_rank = p->config.place.rank,
                                   .secret = &p->launch,
                                   .lost = on_lost,
                                   .hangs = hangs,
                                   .ctx = p,
                                   .refused_until_ns = refused_ns < latest_ns ? refused_ns : latest_ns};
    mr_status status = mr_secret_find(&p->launch, err);
    if (status != MR_OK)
        return status;
    while ((status = mr_lifeline_connect(&wish, address, deadline_ns, &p->lifeline, err)) != MR_OK &&
           status != MR_E_PROTOCOL && status != MR_E_UNAVAILABLE && mr_clock_now_ns() + RETRY_NS < deadline_ns)
        sleep_ns(RETRY_NS);
    if (status == MR_OK)
        p->plane = mr_lifeline_secret(p->lifeline);
    if (status == MR_E_TIMEOUT) /* nothing is known of rank 0, and rank 0 reports that this rank is missing */
        return mr_err_set(err, MR_E_CANCELLED, "%s", "");
    if (status == MR_E_PROTOCOL || status == MR_E_UNAVAILABLE) /* this rank alone knows it */
        return status;
    return status == MR_OK ? MR_OK : without_rank_0(p, status, err);
}

static mr_status rank_0_is_silent(rank_process *p, mr_err *err) {
    char host[RANK_HOST_BYTES];
    (void)mr_err_set(err, MR_E_TIMEOUT,
                     "rank 0 on %s has not called for %d s; hint: it was stopped or has died while it started, or it "
                     "needs more time (--start-timeout)",
                     rank_host(p, 0, host), (int)((mr_clock_now_ns() - p->start_ns) / MR_NS_PER_S));
    return without_rank_0(p, MR_E_TIMEOUT, err);
}

static int64_t meeting_deadline(const rank_process *p) {
    return p->start_ns + p->config.late_ns + FOLLOW_NS;
}

/* Asks the launcher until it has the address, or until the deadline. Repeats on errors: Open MPI 4.1 sometimes answers
 * that there is no address before rank 0 has stored it. */
static mr_status ask_for_address(rank_process *p, int64_t deadline_ns, char out_address[MR_LIFELINE_ADDRESS_BYTES],
                                 mr_err *err) {
    for (;;) {
        int64_t left_ns = deadline_ns - mr_clock_now_ns();
        int seconds = left_ns < MR_NS_PER_S ? 1 : (int)(left_ns / MR_NS_PER_S);
        mr_status status =
            mr_launcher_get(p->launcher, 0, ADDRESS_KEY, seconds, out_address, MR_LIFELINE_ADDRESS_BYTES, err);
        if (status == MR_OK)
            return MR_OK;
        if (mr_clock_now_ns() + RETRY_NS >= deadline_ns)
            return rank_0_is_silent(p, err);
        sleep_ns(RETRY_NS);
    }
}

/* For the other ranks: gets rank 0's address and connects. */
static mr_status find_rank_0(rank_process *p, mr_err *err) {
    char address[MR_LIFELINE_ADDRESS_BYTES];
    int64_t deadline_ns = meeting_deadline(p);
    mr_status status = ask_for_address(p, deadline_ns, address, err);
    if (status == MR_OK && !address[0]) /* rank 0 does not start, and has reported the cause */
        return mr_err_set(err, MR_E_CANCELLED, "%s", "");
    return status == MR_OK ? connect_lifeline(p, address, deadline_ns, err) : status;
}

mr_status rank_meet(rank_process *p, mr_err *err) {
    mr_status status = MR_OK;
    (void)pthread_getcpuclockid(pthread_self(), &p->step_clock);
    p->launcher = mr_launcher_open();
    if (p->launcher) {
        learn_hosts(p);
        status = p->config.place.rank == 0 ? mr_launcher_put(p->launcher, ADDRESS_KEY, p->address, err)
                                           : find_rank_0(p, err);
    }
    mr_mutex_lock(&p->lock);
    p->has_met = status == MR_OK;
    p->meets_over_mpi = !p->launcher;
    mr_mutex_unlock(&p->lock);
    return status;
}

mr_status rank_meet_over_mpi(rank_process *p, mr_mpi *mpi, mr_err *err) {
    mr_mutex_lock(&p->lock);
    for (int32_t i = 0; i < p->config.place.n_ranks; i++)
        memcpy(p->hosts[i], mr_mpi_card_of(mpi, i)->host, RANK_HOST_BYTES);
    mr_mutex_unlock(&p->lock);
    if (p->lifeline)
        return MR_OK;
    mr_status status =
        connect_lifeline(p, mr_mpi_card_of(mpi, 0)->lifeline, mr_clock_now_ns() + p->config.late_ns + FOLLOW_NS, err);
    return status == MR_OK ? MR_OK : without_rank_0(p, status, err);
}

/* At rank 0: whether the lifelines of all ranks are connected. */
static mr_status check_ranks(rank_process *p, bool has_met, bool at_once, bool *out_all, mr_err *err) {
    char host[RANK_HOST_BYTES], here[RANK_HOST_BYTES], others[48] = "";
    int32_t first = 0, n = mr_lifeline_n_missing(p->lifeline, &first);
    int64_t now_ns = mr_clock_now_ns();
    if (n != p->n_missing) {
        p->n_missing = n;
        p->n_missing_ns = now_ns;
    }
    double seconds = (double)(now_ns - p->n_missing_ns) / (double)MR_NS_PER_S;
    *out_all = n == 0;
    if (n == 0 || (!at_once && now_ns < p->n_missing_ns + p->config.late_ns))
        return MR_OK;
    if (!has_met)
        return mr_err_set(
            err, MR_E_TIMEOUT,
            "the launcher of rank 0 on %s has not answered for %.0f s; hint: a process that died while it "
            "started may have stopped mpirun: start it again",
            rank_this_host(here), seconds);
    if (n > 1)
        snprintf(others, sizeof others, ", nor have %d others", (int)n - 1);
    return mr_err_set(err, MR_E_TIMEOUT,
                      "rank %d on %s has not called rank 0 on %s for %.0f s%s; hint: it was stopped or has died while "
                      "it started, or a firewall keeps TCP connections from the host of rank 0, or it needs more time "
                      "(--start-timeout)",
                      (int)first, rank_host(p, first, host), rank_this_host(here), seconds, others);
}

mr_status rank_check_meeting(rank_process *p, bool at_once, bool *out_all, mr_err *err) {
    mr_mutex_lock(&p->lock);
    bool has_met = p->has_met, waits_for_mpi = p->meets_over_mpi && p->state < RANK_RUNNING;
    mr_mutex_unlock(&p->lock);
    *out_all = !waits_for_mpi;
    if (waits_for_mpi)
        return MR_OK;
    if (p->config.place.rank == 0)
        return check_ranks(p, has_met, at_once, out_all, err);
    *out_all = has_met;
    /* The step thread reports this timeout itself, unless a call to the launcher keeps it. */
    return has_met || mr_clock_now_ns() < meeting_deadline(p) + MR_NS_PER_S / 2 ? MR_OK : rank_0_is_silent(p, err);
}

/* --- The launcher ------------------------------------------------------------------------------------------------ */

void rank_watch_launcher(void *ctx) {
    rank_process *p = ctx;
    char host[RANK_HOST_BYTES];
    mr_err err;
    while (!rank_wait_for_state(p, RANK_ENDED, mr_clock_now_ns() + LAUNCHER_LOOK_NS)) {
        if (getppid() == p->parent)
            continue;
        (void)mr_err_set(&err, MR_E_PEER_LOST, "the launcher of rank %d on %s is gone", (int)p->config.place.rank,
                         rank_this_host(host));
        if (p->config.place.rank == 0)
            mr_output_error(&err);
        _exit(RANK_EXIT_FAILED);
    }
}
