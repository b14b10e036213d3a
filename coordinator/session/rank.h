/* coordinator/session/rank.h - this process as a rank of an MPI job. A step thread starts MPI, and runs the rank's
 * lobby and stage until the coordinator tells it to end. A lifeline reports when another process has died. At rank 0
 * the main thread is the coordinator: it calls rank_start, rank_channel and rank_end. The other ranks call
 * mr_rank_follow.
 * Owns:    step thread, MPI, lifeline, backend. Borrows: what the config points to.
 * Threads: for the main thread.
 * Errors:  texts name rank and host. The loss of a rank is reported once, where it is noticed: mr_rank_loss_reported.
 *          */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_RANK_H
#define MR_COORDINATOR_SESSION_RANK_H

#include <stdbool.h>

#include "coordinator/session/rank_place.h"
#include "engine/base/status.h"
#include "proto/channel.h"
#include "worker/stage/devices.h"

typedef struct rank_process rank_process;

typedef struct mr_rank_config {
    mr_rank_place place;
    const char *model_path; /* NULL: there is none, and problem has the reason */
    const char *cache_dir;  /* mr_lobby_config.cache_dir */
    int32_t n_threads;      /* of the stage; 0: as many as the rank's share has cores */
    mr_devices_config devices;
    bool serves;           /* this is a server: only rank 0 handles SIGHUP */
    bool verifies_weights; /* mr_lobby_config.verifies_weights */
    bool recovers;         /* the job may go on without this rank */
    const mr_err *problem; /* why this rank cannot take part, or NULL */
    int64_t patience_ns;   /* how long MPI may take to start */
    int64_t late_ns;       /* how long the lifeline of a rank may be missing */
} mr_rank_config;

/* Call at the start of main, before there are threads. */
void mr_rank_prepare(void);
/* For rank 0. Waits until MPI runs and all lifelines are connected. MR_E_TIMEOUT: MPI has not started, because a rank
 * is missing. */
MR_MUST_USE mr_status rank_start(const mr_rank_config *config, rank_process **out, mr_err *err);
/* The coordinator's channel to the ranks, at rank 0. rank_end destroys it. */
mr_channel *rank_channel(rank_process *p);
/* The number of threads of this rank's stage. */
int32_t rank_threads(const rank_process *p);
/* Ends MPI and frees everything. Destroy the coordinator's links before. well: no error has occurred, so waiting for
 * the other ranks is worth while. NULL is accepted. */
void rank_end(rank_process *p, bool well);

/* For the other ranks. Runs until the coordinator tells this rank to end, or is lost. Returns the exit status. */
int mr_rank_follow(const mr_rank_config *config);

/* For a rank 0 that will not start. The other ranks, which wait for rank 0's address, exit without a message. */
void rank_dismiss(void);
/* Whether the rank holds no stage: then its loss is a warning, not an error. */
void rank_set_idle(rank_process *p, int32_t rank, bool is_idle);
/* From now on the loss of any rank but rank 0 is a warning: the caller goes on without it. */
void rank_allow_losses(rank_process *p);
/* Whether a rank was lost, idle or not. */
bool rank_is_lost(rank_process *p, int32_t rank);
/* Of the ranks that were lost since the last call: the longest time from a rank's last sign of life to its loss; 0:
 * none was lost. */
int64_t rank_take_silence_ns(rank_process *p);
/* Whether a rank that is not idle was lost, and the user has been told. Later errors follow from that loss and need no
 * message. */
bool mr_rank_loss_reported(void);
/* Whether any rank was lost, needed or not. MPI cannot be finalized in order then. */
bool rank_any_lost(void);
/* Name and version of the MPI library, or "none". */
void mr_rank_mpi_library(char *out, size_t bytes);
/* Whether threads remain that cannot be ended. The process must then leave by _exit. */
bool mr_rank_left_behind(void);

#endif
