/* proto/mpi_sinks.h - takes and drops messages that no endpoint wants any more. MPI cannot cancel a large send: such a
 * send ends only when its receiver takes the message. A sink is for one sender and tag, and lives for some seconds.
 * Owns:    its list, and the buffer of the message that it takes. Threads: any thread may add and remove; all else, and
 *          all calls of MPI, are for the thread that owns MPI.
 * Errors:  a message that cannot be taken stays. When the list is full, a new sink replaces the oldest one. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_MPI_SINKS_H
#define MR_PROTO_MPI_SINKS_H

#include <mpi.h>
#include <stddef.h>

#include "engine/base/status.h"

typedef struct mr_mpi_sinks mr_mpi_sinks;

MR_MUST_USE mr_status mr_mpi_sinks_create(int n_ranks, mr_mpi_sinks **out, mr_err *err);
/* A message that is being taken is given up. NULL is accepted. */
void mr_mpi_sinks_destroy(mr_mpi_sinks *s);
/* Takes messages of up to most_bytes from now on. */
void mr_mpi_sinks_add(mr_mpi_sinks *s, MPI_Comm comm, int rank, int tag, size_t most_bytes);
/* A receive of this sender and tag is about to be posted. */
void mr_mpi_sinks_remove(mr_mpi_sinks *s, MPI_Comm comm, int rank, int tag);
/* Looks for messages, if the last look was some time ago. */
void mr_mpi_sinks_drain(mr_mpi_sinks *s);

#endif
