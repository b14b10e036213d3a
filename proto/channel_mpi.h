/* proto/channel_mpi.h - channels between the ranks of an MPI job. Endpoint i is the stage of rank i; endpoint n_ranks
 * is the coordinator, in the process of rank 0. One thread of each process owns MPI (MPI_THREAD_FUNNELED): the thread
 * that calls mr_mpi_start, which is the step thread of the stage. One other thread may use the channel of the
 * coordinator: its requests are queued, and the owner posts and tests them whenever the owner makes progress, in its
 * own wait and between the nodes of a graph (mr_channel_progress). After start only point-to-point messages are used,
 * because a collective would wait for a dead rank for ever.
 * Owns:    requests, communicators and MPI itself. Borrows: posted buffers (proto/channel.h).
 * Errors:  those of proto/channel.h. MPI does not report that a rank has died: the caller says so by mr_mpi_peer_lost.
 * Source:  MPI 3.1, chapters 3 and 12.4; what Open MPI 4.1.4 does was measured. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_CHANNEL_MPI_H
#define MR_PROTO_CHANNEL_MPI_H

#include "proto/channel.h"

enum { MR_MPI_LIBRARY_BYTES = 64 }; /* with the terminating zero */

typedef struct mr_mpi mr_mpi;

/* The texts that every rank tells all other ranks when MPI starts. Texts end with 0. */
typedef struct mr_mpi_card {
    char host[64];
    char mpi_library[MR_MPI_LIBRARY_BYTES]; /* filled in by mr_mpi_start */
    char lifeline[512];                     /* on rank 0: the address of its lifeline (proto/lifeline.h) */
} mr_mpi_card;

typedef struct mr_mpi_config {
    int32_t max_requests; /* most posted requests of one endpoint */
    bool shares_cores;    /* this host has more threads than cores: a waiting thread soon sleeps instead of spinning */
    mr_mpi_card card;     /* card of this rank; copied */
} mr_mpi_config;

/* Name and version of the MPI library: "Open MPI v4.1.4". May be called at any time, by any thread. */
void mr_mpi_library(char out[MR_MPI_LIBRARY_BYTES]);
/* Sets environment variables that Open MPI reads. Call before the process has other threads, which might read the
 * environment at the same time. */
void mr_mpi_prepare(void);

/* Initialises MPI in the calling thread and exchanges the cards. Waits for all ranks. */
MR_MUST_USE mr_status mr_mpi_start(const mr_mpi_config *config, mr_mpi **out, mr_err *err);
int32_t mr_mpi_rank(const mr_mpi *m);
int32_t mr_mpi_n_ranks(const mr_mpi *m);
const mr_mpi_card *mr_mpi_card_of(const mr_mpi *m, int32_t rank);

/* The endpoint of this rank's stage, bound to the thread that called mr_mpi_start. The caller destroys the channel. */
mr_channel *mr_mpi_stage_channel(mr_mpi *m);
/* The endpoint of the coordinator; rank 0 only. The caller destroys the channel; mr_mpi_serve waits for that. */
mr_channel *mr_mpi_coordinator_channel(mr_mpi *m);

/* Tells the channels that a rank is gone: requests to and from this rank fail with MR_E_PEER_LOST. Thread-safe. */
void mr_mpi_peer_lost(mr_mpi *m, int32_t rank);

/* How often the owner has looked for messages: while this number stands still, the owner computes or hangs. Any
 * thread. */
uint64_t mr_mpi_n_looks(const mr_mpi *m);

/* Called by the owner after its last work: makes progress for the coordinator until the coordinator's channel is
 * destroyed. Returns at once on the other ranks. */
void mr_mpi_serve(mr_mpi *m);
/* Called by the owner after mr_mpi_serve, when all channels are destroyed: ends MPI and frees everything. If a rank is
 * lost, MPI is not ended and nothing is freed, because MPI_Finalize would wait for ever. */
void mr_mpi_finish(mr_mpi *m);

#endif
