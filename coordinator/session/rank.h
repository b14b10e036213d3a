/* coordinator/session/rank.h - this process as a rank of an MPI job. A step thread of its own starts MPI, and runs the
 * rank's lobby and stage until it is told to end; a lifeline tells when another process has died.
 * At rank 0 the main thread is the coordinator: rank_start, the channel, rank_end. The others only follow.
 * Owns:    step thread, MPI, lifeline, backend. Borrows: what the config points to.
 * Threads: for the main thread.
 * Errors:  name rank and host. A lost rank is reported where it is noticed, once: mr_rank_loss_reported. */
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
    const char *model_path; /* NULL: problem says why there is none */
    const char *cache_dir;  /* mr_lobby_config.cache_dir */
    int32_t n_threads;      /* of the stage; 0: the cores of the rank's share */
    mr_devices_config devices;
    bool serves;           /* a server: SIGHUP is rank 0's */
    const mr_err *problem; /* why this rank cannot take part, or NULL */
    int64_t patience_ns;   /* for MPI to start */
    int64_t late_ns;       /* at most: without a call from a rank that is missing */
} mr_rank_config;

/* At the start of main, before there are threads. */
void mr_rank_prepare(void);
/* Rank 0. MR_E_TIMEOUT: MPI has not started, because a rank is missing. */
MR_MUST_USE mr_status rank_start(const mr_rank_config *config, rank_process **out, mr_err *err);
mr_channel *rank_channel(rank_process *p);
int32_t rank_threads(const rank_process *p);
/* Ends MPI and frees everything; the coordinator's links are gone before. well: nothing has failed, so that the other
 * ranks are worth waiting for. NULL is accepted. */
void rank_end(rank_process *p, bool well);

/* The others: until the coordinator tells this rank to end, or is gone. Returns the exit status. */
int mr_rank_follow(const mr_rank_config *config);

/* Rank 0, where it will not start: the others, who wait to be told where it is, leave without a word. */
void rank_dismiss(void);
/* This rank has no part in what follows: from here on its loss is a warning. */
void rank_set_idle(rank_process *p, int32_t rank);
/* A rank that is needed was lost, and the user has been told: what fails after that is no news. */
bool mr_rank_loss_reported(void);
/* Any rank was lost, needed or not: MPI cannot be ended in order. */
bool rank_any_lost(void);
/* Name and version of the MPI library, or "none". */
void mr_rank_mpi_library(char *out, size_t bytes);
/* Threads are left behind that cannot be ended: leave by _exit. */
bool mr_rank_left_behind(void);

#endif
