/* coordinator/session/rank_internal.h - the state of a rank process, shared by rank.c (threads, start and end) and
 * rank_meeting.c (the launcher and the lifeline). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_RANK_INTERNAL_H
#define MR_COORDINATOR_SESSION_RANK_INTERNAL_H

#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>

#include "coordinator/session/rank.h"
#include "coordinator/session/step_watch.h"
#include "engine/base/thread.h"
#include "proto/channel_mpi.h"
#include "proto/launcher.h"
#include "proto/lifeline.h"
#include "proto/secret.h"

enum { RANK_HOST_BYTES = sizeof((mr_mpi_card *)0)->host, RANK_EXIT_FAILED = 1 };

typedef enum rank_state { RANK_STARTING, RANK_RUNNING, RANK_FINISHING, RANK_ENDED } rank_state;

struct rank_process {
    mr_rank_config config;
    char *model_path, *cache_dir; /* copies, because the step thread may be left behind and outlive the config */
    mr_err problem;
    rank_share share;
    int32_t n_threads;
    mr_thread *step_thread, *watch_thread;
    pid_t parent;          /* the launcher, or the launcher's daemon on this host */
    int64_t start_ns;      /* when this process became a rank */
    mr_launcher *launcher; /* used by the step thread; NULL: the launcher offers no key-value store */
    mr_lifeline *lifeline; /* used by the step thread until MPI runs; at rank 0 by the main thread */
    /* At rank 0: the address of the lifeline. A copy, because the step thread may outlive the lifeline. */
    char address[MR_LIFELINE_ADDRESS_BYTES];
    int32_t n_missing;      /* rank 0's main thread: ranks without a lifeline at the last look, */
    int64_t n_missing_ns;   /* and when this number last changed */
    atomic_uint n_signals;  /* SIGUSR1 so far */
    mr_secret launch;       /* of the launch */
    mr_secret plane;        /* of this job, for the frames; not set: there is no launch secret */
    atomic_bool runs_steps; /* the stage of this rank is loaded */
    clockid_t step_clock;   /* the CPU time of the step thread; set before there is a lifeline */
    step_watch watch;       /* used by the thread of the lifeline */
    mr_mutex lock;          /* guards all fields below */
    mr_cond changed;
    rank_state state;
    mr_status status; /* of the step thread */
    mr_err err;
    char (*hosts)[RANK_HOST_BYTES]; /* [n_ranks], "" until known, first from the launcher, then from MPI */
    bool *is_idle;                  /* [n_ranks]: the rank holds no stage */
    bool *is_lost;                  /* [n_ranks] */
    bool allows_losses;             /* rank_allow_losses */
    mr_mpi *mpi;                    /* NULL before MPI runs and when it ends */
    bool has_met;                   /* rank_meet has succeeded */
    bool meets_over_mpi;            /* launcher is NULL: ranks learn rank 0's address over MPI */
    bool abandoned;     /* written by the step thread before it finishes: a rank is lost, so no wait for the others */
    bool goodbye;       /* rank 0 has ended in order */
    int64_t silent_ns;  /* rank_take_silence_ns */
    int32_t early_loss; /* a rank that was lost before mpi was set; 0: none */
};

/* --- rank_meeting.c --- */

/* The name of this host; returns out. */
const char *rank_this_host(char out[RANK_HOST_BYTES]);
/* The name of a rank's host, or "an unknown host"; returns out. The caller does not hold the lock. */
const char *rank_host(rank_process *p, int32_t rank, char out[RANK_HOST_BYTES]);

/* For rank 0, on the main thread: starts to accept lifelines. On an error, dismisses the other ranks (rank_dismiss). */
MR_MUST_USE mr_status rank_listen(rank_process *p, mr_err *err);
/* On the step thread, before MPI starts: the other ranks get rank 0's address from the launcher and connect their
 * lifelines. Does nothing if the launcher offers no key-value store. MR_E_CANCELLED, without a text: rank 0 will not
 * start, or reports the error itself. */
MR_MUST_USE mr_status rank_meet(rank_process *p, mr_err *err);
/* On the step thread, when MPI runs: connects the lifelines that rank_meet could not connect. */
MR_MUST_USE mr_status rank_meet_over_mpi(rank_process *p, mr_mpi *mpi, mr_err *err);
/* On the main thread, called repeatedly while the rank starts: *out_all tells whether the lifelines are connected, at
 * rank 0 those of all ranks. MR_E_TIMEOUT: no further lifeline has come for late_ns, or, with at_once, one is missing
 * now; the text names the first. MR_E_CANCELLED, without a text: as in rank_meet. */
MR_MUST_USE mr_status rank_check_meeting(rank_process *p, bool at_once, bool *out_all, mr_err *err);

/* Whether a signal has told this follower to end. */
bool rank_signalled(void);
/* Body of the thread that ends this process when its launcher has died. */
void rank_watch_launcher(void *ctx);
/* Waits until the state is `state` or a later one. false: the deadline has passed. */
bool rank_wait_for_state(rank_process *p, rank_state state, int64_t deadline_ns);

#endif
