/* other_mpi.c - preloaded into ranks: an MPI library that is another one in each process, and fails as Open MPI then
 * does. */
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define PUBLIC __attribute__((visibility("default")))

PUBLIC int MPI_Get_library_version(char *out, int *out_len) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    *out_len = snprintf(out, MPI_MAX_LIBRARY_VERSION_STRING, "Open MPI v9.9.%s, package: none", rank ? rank : "?");
    return MPI_SUCCESS;
}

PUBLIC int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out) {
    (void)comm;
    (void)out;
    return MPI_ERR_INTERN;
}
