/* changed_mpi.c - preloaded into ranks: CHANGED_MPI names what happens to one large message that rank CHANGED_RANK
 * sends: "changed" (a bit flips on the way), "again" (it comes a second time), "forged" (a stranger's message comes
 * before it). */
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

enum { LEAST_BYTES = 1000, MOST_BYTES = 1 << 20, EPOCH_TAGS = 8, THIS_ONE = 20 };

static unsigned char copy[MOST_BYTES];

/* Whether this is the message. Tags below EPOCH_TAGS are those of the lobby. */
static int is_this_one(int count, int tag) {
    static int n;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *wanted = getenv("CHANGED_RANK");
    if (!rank || !wanted || strcmp(rank, wanted) != 0 || count < LEAST_BYTES || count > MOST_BYTES || tag < EPOCH_TAGS)
        return 0;
    return ++n == THIS_ONE;
}

static void send_another(MPI_Datatype type, int count, int peer, int tag, MPI_Comm comm) {
    MPI_Request request;
    PMPI_Isend(copy, count, type, peer, tag, comm, &request);
    MPI_Request_free(&request);
}

PUBLIC int MPI_Isend(const void *buffer, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                     MPI_Request *request) {
    const char *what = getenv("CHANGED_MPI");
    if (!what || !is_this_one(count, tag))
        return PMPI_Isend(buffer, count, type, peer, tag, comm, request);
    memcpy(copy, buffer, (size_t)count);
    if (strcmp(what, "again") != 0)
        copy[count - 1] ^= 1;
    if (strcmp(what, "changed") == 0)
        return PMPI_Isend(copy, count, type, peer, tag, comm, request);
    if (strcmp(what, "forged") == 0)
        send_another(type, count, peer, tag, comm);
    int code = PMPI_Isend(buffer, count, type, peer, tag, comm, request);
    if (strcmp(what, "again") == 0)
        send_another(type, count, peer, tag, comm);
    return code;
}
