/* coordinator/session/rank_internal.h - what the files of a rank share: the process, and how it meets the others.
 * rank.c has its threads, its start and its end; rank_meeting.c the launcher and the lifeline. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_RANK_INTERNAL_H
#define MR_COORDINATOR_SESSION_RANK_INTERNAL_H

#include <stdatomic.h>
#include <sys/types.h>

#include "coordinator/session/rank.h"
#include "engine/base/thread.h"
#include "proto/channel_mpi.h"
#include "proto/launcher.h"
#include "proto/lifeline.h"

enum { RANK_HOST_BYTES = sizeof((mr_mpi_card *)0)->host, RANK_EXIT_FAILED = 1 };

typedef enum rank_state { RANK_STARTING, RANK_RUNNING, RANK_FINISHING, RANK_ENDED } rank_state;

struct rank_process {
    mr_rank_config config;
    char *model_path, *cache_dir; /* copies, for a step thread that is left behind */
    mr_err problem;
    rank_share share;
    int32_t n_threads;
    mr_thread *step_thread, *watch_thread;
    pid_t parent;          /* the launcher, or its daemon on this host */
    int64_t start_ns;      /* of this process as a rank */
    mr_launcher *launcher; /* of the step thread; NULL: it carries no texts */
    mr_lifeline *lifeline; /* of the step thread until it runs; at rank 0 of the main thread */
    /* At rank 0, where the lifeline listens: the step thread may outlive the lifeline itself. */
    char address[MR_LIFELINE_ADDRESS_BYTES];
    int32_t n_missing;    /* rank 0's main thread: ranks whose lifeline was missing when it last looked, */
    int64_t n_missing_ns; /* and since when there are so many */
    mr_mutex lock;        /* guards what follows */
    mr_cond changed;
    rank_state state;
    mr_status status; /* of the step thread */
    mr_err err;
    char (*hosts)[RANK_HOST_BYTES]; /* [n_ranks], "" until known: by the launcher, then by MPI */
    bool *is_idle;                  /* [n_ranks] */
    mr_mpi *mpi;                    /* NULL before it runs, and when it ends */
    bool has_met;                   /* rank_meet has succeeded */
    bool meets_over_mpi;            /* the launcher carries no texts */
    bool abandoned;     /* written by the step thread before it finishes: a rank is lost, nobody is waited for */
    bool goodbye;       /* of rank 0 */
    int32_t early_loss; /* a rank that was lost before mpi was there; 0: none */
};

/* --- rank_meeting.c --- */

/* The name of this host; returns out. */
const char *rank_this_host(char out[RANK_HOST_BYTES]);
/* That of a rank, "an unknown host" until it is known; returns out. The lock is not held. */
const char *rank_host(rank_process *p, int32_t rank, char out[RANK_HOST_BYTES]);

/* Rank 0, on the main thread: takes lifelines from here on. Where it cannot, the others hear that rank 0 does not
 * start. */
MR_MUST_USE mr_status rank_listen(rank_process *p, mr_err *err);
/* On the step thread, before MPI starts: the other ranks connect their lifelines to rank 0, which the launcher tells
 * them where to find. Without a launcher that can, nothing happens. MR_E_CANCELLED, without a text: rank 0 will not
 * start, or says itself what is wrong. */
MR_MUST_USE mr_status rank_meet(rank_process *p, mr_err *err);
/* On the step thread, when MPI runs: what rank_meet could not do. */
MR_MUST_USE mr_status rank_meet_over_mpi(rank_process *p, mr_mpi *mpi, mr_err *err);
/* On the main thread, again and again while the rank starts: whether the lifelines are there, at rank 0 all of them.
 * MR_E_TIMEOUT: none has come for long, or one is missing where all should be there at_once; names the first.
 * MR_E_CANCELLED, without a text: as above. */
MR_MUST_USE mr_status rank_check_meeting(rank_process *p, bool at_once, bool *out_all, mr_err *err);

/* Whether a follower was told to end by a signal. */
bool rank_signalled(void);
/* The thread that ends this process when its launcher has died. */
void rank_watch_launcher(void *ctx);
/* Waits until the state is at least the given one; false at the deadline. */
bool rank_wait_for_state(rank_process *p, rank_state state, int64_t deadline_ns);

#endif
