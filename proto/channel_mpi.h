/* proto/channel_mpi.h - channels between the ranks of an MPI job.
 * Endpoint i is the stage of rank i; endpoint n_ranks is the coordinator, in the process of rank 0. One thread of each
 * process owns MPI (MPI_THREAD_FUNNELED): the one that calls mr_mpi_start, which is the stage's step thread. The
 * coordinator's channel may be used by one other thread: its requests are queued, and the owner posts and tests them
 * whenever it makes progress: in its own wait, and between the nodes of a graph (mr_channel_progress).
 * Only point-to-point messages are used after start, so that no dead rank is waited for.
 * Owns:    requests, and what a process keeps of MPI. Borrows: posted buffers (proto/channel.h).
 * Errors:  those of proto/channel.h. MPI itself does not say that a rank has died: mr_mpi_peer_lost is told.
 * Source:  MPI 3.1, chapters 3 and 12.4; what Open MPI 4.1.4 does was measured. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_CHANNEL_MPI_H
#define MR_PROTO_CHANNEL_MPI_H

#include "proto/channel.h"

enum { MR_MPI_LIBRARY_BYTES = 64 }; /* its end included */

typedef struct mr_mpi mr_mpi;

/* What every rank says of itself while MPI starts. Texts end with 0. */
typedef struct mr_mpi_card {
    char host[64];
    char mpi_library[MR_MPI_LIBRARY_BYTES]; /* filled in by mr_mpi_start */
    char lifeline[512];                     /* of rank 0: where the others connect to (proto/lifeline.h) */
} mr_mpi_card;

typedef struct mr_mpi_config {
    int32_t max_requests; /* posted by one endpoint */
    bool shares_cores;    /* more threads than cores on this host: who waits gives its core away soon */
    mr_mpi_card card;     /* of this rank; copied */
} mr_mpi_config;

/* Name and version of the MPI library: "Open MPI v4.1.4". May be called at any time, by any thread. */
void mr_mpi_library(char out[MR_MPI_LIBRARY_BYTES]);
/* Sets variables that Open MPI reads. Before the process has other threads, because those read variables, too. */
void mr_mpi_prepare(void);

/* Initialises MPI in the calling thread and exchanges the cards: returns when all ranks have come this far. */
MR_MUST_USE mr_status mr_mpi_start(const mr_mpi_config *config, mr_mpi **out, mr_err *err);
int32_t mr_mpi_rank(const mr_mpi *m);
int32_t mr_mpi_n_ranks(const mr_mpi *m);
const mr_mpi_card *mr_mpi_card_of(const mr_mpi *m, int32_t rank);

/* The endpoint of this rank's stage, bound to the thread that called start. Destroyed like any channel. */
mr_channel *mr_mpi_stage_channel(mr_mpi *m);
/* The coordinator's endpoint; rank 0 only. It has to be destroyed before mr_mpi_serve can return. */
mr_channel *mr_mpi_coordinator_channel(mr_mpi *m);

/* A rank is gone: requests to and from it end with MR_E_PEER_LOST. Thread-safe. */
void mr_mpi_peer_lost(mr_mpi *m, int32_t rank);

/* By the owner, when it has nothing else to do any more: makes progress for the coordinator until its channel is
 * destroyed. Returns at once at the other ranks. */
void mr_mpi_serve(mr_mpi *m);
/* By the owner, after serve and the end of all channels: ends MPI and frees everything. With a lost rank MPI is left as
 * it is: its end would wait for ever. */
void mr_mpi_finish(mr_mpi *m);

#endif
