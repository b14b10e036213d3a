/* proto/mpi_sockets.h - the TCP connections that Open MPI has made in this process, and how to take one away from it.
 * Open MPI 4.1 ends the process when a connection fails while messages wait in it ("FATAL" in ob1): when the
 * network of a lost host comes back, its kernel resets the connections of a process that is gone. So a connection to a
 * lost rank is closed, and in its place Open MPI has a socket that nobody reads: it takes some messages, never brings
 * one, and never fails.
 * Owns:    two descriptors, from the first mr_mpi_doors_shut on. Threads: the thread that calls MPI, as Open MPI may
 *          open and close connections within each call.
 * Errors:  none: where the system lists no descriptors (/proc), or another MPI library hides its connections, nothing
 *          is found.
 * Source:  Open MPI 4.1, opal/mca/btl/tcp: each process listens on one port for each family, and any of two processes
 *          connects to the port of the other one. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_MPI_SOCKETS_H
#define MR_PROTO_MPI_SOCKETS_H

#include <stdatomic.h>
#include <stdint.h>

enum { MR_MPI_DOOR_PORTS = 8, MR_MPI_DOOR_IPS = 16 };

/* Where the MPI library of a process takes connections. Equal on all hosts; zeros fill up the lists. */
typedef struct mr_mpi_door {
    uint16_t ports[MR_MPI_DOOR_PORTS]; /* network byte order, as the addresses */
    uint8_t ips[MR_MPI_DOOR_IPS][16];  /* of the host, IPv6, without loopback; IPv4 as ::ffff:a.b.c.d */
} mr_mpi_door;

/* Finds the ports on which this process listens, but for those of `before`, and the addresses of this host. before: the
 * door before MPI was initialised; NULL: there were no ports. Another thread may begin to listen meanwhile: such ports
 * do not count if they are among engine/base/own_ports.h. */
void mr_mpi_door_find(const mr_mpi_door *before, mr_mpi_door *out);
/* Takes the connections to hosts away from MPI on which no process of the job lives. doors[n], lost[n]: of all
 * processes; self: this one. A host is what has an address: names do not count, as containers may share addresses.
 * Returns the number of connections. */
int32_t mr_mpi_doors_shut(const mr_mpi_door *doors, const atomic_bool *lost, int32_t n, int32_t self);

#endif
