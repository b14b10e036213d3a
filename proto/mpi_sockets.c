// SPDX-License-Identifier: Apache-2.0
#include "proto/mpi_sockets.h"

#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/own_ports.h"

/* Calls visit for each descriptor of this process. */
static void each_descriptor(void (*visit)(void *ctx, int fd), void *ctx) {
    DIR *folder = opendir("/proc/self/fd");
    for (const struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder))
        if (e->d_name[0] >= '0' && e->d_name[0] <= '9' && atoi(e->d_name) != dirfd(folder))
            visit(ctx, atoi(e->d_name));
    if (folder)
        closedir(folder);
}

/* The parts of an address of TCP. false: it is another one. */
static bool split(const struct sockaddr *a, uint8_t out_ip[16], uint16_t *out_port) {
    if (a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
        memcpy(out_ip, &v6->sin6_addr, 16);
        *out_port = v6->sin6_port;
        return true;
    }
    if (a->sa_family != AF_INET)
        return false;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
    memset(out_ip, 0, 10);
    memset(out_ip + 10, 0xff, 2);
    memcpy(out_ip + 12, &v4->sin_addr, 4);
    *out_port = v4->sin_port;
    return true;
}

static bool has_port(const mr_mpi_door *door, uint16_t port) {
    for (int i = 0; i < MR_MPI_DOOR_PORTS && door->ports[i]; i++)
        if (door->ports[i] == port)
            return true;
    return false;
}

static bool has_ip(const mr_mpi_door *door, const uint8_t ip[16]) {
    const uint8_t none[16] = {0};
    for (int i = 0; i < MR_MPI_DOOR_IPS && memcmp(door->ips[i], none, 16) != 0; i++)
        if (memcmp(door->ips[i], ip, 16) == 0)
            return true;
    return false;
}

/* --- The door ---------------------------------------------------------------------------------------------------- */

typedef struct ports {
    const mr_mpi_door *before;
    mr_mpi_door *door;
    int n;
} ports;

static void add_port(void *ctx, int fd) {
    ports *p = ctx;
    struct sockaddr_storage here;
    uint8_t ip[16];
    uint16_t port;
    int listens = 0;
    socklen_t n = sizeof listens, n_here = sizeof here;
    if (p->n == MR_MPI_DOOR_PORTS || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) != 0 || !listens ||
        getsockname(fd, (struct sockaddr *)&here, &n_here) != 0 || !split((const struct sockaddr *)&here, ip, &port))
        return;
    if ((!p->before || !has_port(p->before, port)) && !has_port(p->door, port))
        p->door->ports[p->n++] = port;
}

static void add_ips(mr_mpi_door *door) {
    struct ifaddrs *all;
    uint16_t port;
    int n = 0;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *i = all; i && n < MR_MPI_DOOR_IPS; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_flags & IFF_UP && !(i->ifa_flags & IFF_LOOPBACK) &&
            split(i->ifa_addr, door->ips[n], &port))
            n++;
    freeifaddrs(all);
}

void mr_mpi_door_find(const mr_mpi_door *before, mr_mpi_door *out) {
    *out = (mr_mpi_door){0};
    each_descriptor(add_port, &(ports){.before = before, .door = out});
    add_ips(out);
}

/* --- Connections ------------------------------------------------------------------------------------------------- */

typedef struct shutting {
    const mr_mpi_door *doors;
    const atomic_bool *lost;
    int32_t n, self;
    int quiet; /* what comes in the place of a connection */
    int32_t n_shut;
} shutting;

/* Whether a connection of MPI to this port of this address leads to a host without a living process. */
static bool leads_to_lost(const shutting *s, const uint8_t ip[16], uint16_t port, uint16_t own_port) {
    bool is_of_mpi = has_port(&s->doors[s->self], own_port) && !mr_own_ports_has(own_port), is_lost = false;
    for (int32_t i = 0; i < s->n; i++) {
        if (!has_ip(&s->doors[i], ip))
            continue;
        if (!atomic_load(&s->lost[i]))
            return false;
        is_lost = true;
        is_of_mpi = is_of_mpi || has_port(&s->doors[i], port);
    }
    return is_lost && is_of_mpi;
}

static void shut(void *ctx, int fd) {
    shutting *s = ctx;
    struct sockaddr_storage there, here;
    uint8_t ip[16], own_ip[16];
    uint16_t port, own_port;
    socklen_t n_there = sizeof there, n_here = sizeof here;
    if (getpeername(fd, (struct sockaddr *)&there, &n_there) != 0 || !split((struct sockaddr *)&there, ip, &port) ||
        getsockname(fd, (struct sockaddr *)&here, &n_here) != 0 || !split((struct sockaddr *)&here, own_ip, &own_port))
        return;
    if (leads_to_lost(s, ip, port, own_port) && dup2(s->quiet, fd) == fd) {
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        s->n_shut++;
    }
}

int32_t mr_mpi_doors_shut(const mr_mpi_door *doors, const atomic_bool *lost, int32_t n, int32_t self) {
    static int quiet[2] = {-1, -1};
    if (quiet[0] < 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, quiet) != 0)
        return 0;
    shutting s = {.doors = doors, .lost = lost, .n = n, .self = self, .quiet = quiet[0]};
    each_descriptor(shut, &s);
    return s.n_shut;
}
