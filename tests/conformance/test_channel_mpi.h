/* tests/conformance/test_channel_mpi.h - the channels between the ranks of one mpirun, under test.
 * Owns:    nothing. Threads: for the thread that started MPI; what run_beside runs is in a thread of its own. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CONFORMANCE_TEST_CHANNEL_MPI_H
#define MR_TESTS_CONFORMANCE_TEST_CHANNEL_MPI_H

#include "proto/channel_mpi.h"
#include "test_channel.h"

typedef struct mpi_world {
    mr_mpi *mpi;
    int32_t rank, n_ranks;
    mr_channel *stage, *coordinator; /* coordinator: NULL but at rank 0 */
} mpi_world;

/* A test that every rank runs; false: a check has failed, and was printed. */
typedef struct mpi_test {
    const char *name;
    bool (*body)(mpi_world *w);
} mpi_test;

/* Those of lost take one rank each from the others, from rank 1 on. They end with a NULL name. */
extern const mpi_test mpi_fault_tests[], mpi_lost_tests[];

/* True when all ranks say so: returns when all have come. It uses MPI beside the channels, and lets them work. */
bool mpi_agree(bool ok);
/* Runs body in a second thread, as the coordinator, and meanwhile what the owner has to do. */
bool run_beside(mpi_world *w, bool (*body)(void *ctx), void *ctx);

#endif
