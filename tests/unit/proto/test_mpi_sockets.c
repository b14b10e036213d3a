// SPDX-License-Identifier: Apache-2.0
/* Which connections are taken away, and what is in their place. This process is both ends of all of them. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/own_ports.h"
#include "proto/mpi_sockets.h"
#include "tests/support/test.h"

static const uint8_t LOOPBACK[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1},
                     OTHER[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1};

static struct sockaddr_in address_of(uint16_t port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Returns a listening socket, and its port. */
static int listen_somewhere(uint16_t *out_port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = address_of(0);
    socklen_t n = sizeof a;
    assert_true(fd >= 0);
    assert_return_code(bind(fd, (struct sockaddr *)&a, sizeof a), errno);
    assert_return_code(listen(fd, 4), errno);
    assert_return_code(getsockname(fd, (struct sockaddr *)&a, &n), errno);
    *out_port = a.sin_port;
    return fd;
}

/* Connects to the port, on which `listener` listens. */
static void connect_to(int listener, uint16_t port, int out_ends[2]) {
    struct sockaddr_in a = address_of(port);
    out_ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    assert_return_code(connect(out_ends[0], (struct sockaddr *)&a, sizeof a), errno);
    out_ends[1] = accept(listener, NULL, NULL);
    assert_true(out_ends[1] >= 0);
}

static void close_both(const int ends[2]) {
    close(ends[0]);
    close(ends[1]);
}

/* A message comes from one end to the other. */
static bool is_connected(const int ends[2]) {
    char c = 0;
    return write(ends[0], "x", 1) == 1 && recv(ends[1], &c, 1, 0) == 1 && c == 'x';
}

static void test_ports(void **state) {
    (void)state;
    uint16_t old_port, port;
    mr_mpi_door before, door;
    int old = listen_somewhere(&old_port);
    mr_mpi_door_find(NULL, &before);
    assert_true(before.ports[0] != 0); /* others may be inherited */
    int fd = listen_somewhere(&port);
    mr_mpi_door_find(&before, &door);
    assert_int_equal(door.ports[0], port);
    assert_int_equal(door.ports[1], 0);
    close(old);
    close(fd);
}

enum { SELF, LOST, N };

/* Both are on this host by their addresses, or LOST is and SELF is not. */
static void set_addresses(mr_mpi_door *doors, bool is_shared) {
    memcpy(doors[LOST].ips[0], OTHER, sizeof OTHER);
    memcpy(doors[LOST].ips[1], LOOPBACK, sizeof LOOPBACK);
    memcpy(doors[SELF].ips[0], is_shared ? LOOPBACK : OTHER, sizeof OTHER);
}

static void test_connections(void **state) {
    (void)state;
    mr_mpi_door doors[N] = {0};
    atomic_bool lost[N] = {[LOST] = true}, none[N] = {0};
    uint16_t port;
    int listeners[] = {listen_somewhere(&doors[SELF].ports[0]), listen_somewhere(&doors[LOST].ports[0]),
                       listen_somewhere(&port)};
    int from_there[2], to_there[2], unknown[2];
    connect_to(listeners[0], doors[SELF].ports[0], from_there);
    connect_to(listeners[1], doors[LOST].ports[0], to_there);
    connect_to(listeners[2], port, unknown);
    assert_int_equal(mr_mpi_doors_shut(doors, lost, N, SELF), 0); /* without addresses */
    set_addresses(doors, true);
    assert_int_equal(mr_mpi_doors_shut(doors, lost, N, SELF), 0);
    set_addresses(doors, false);
    assert_int_equal(mr_mpi_doors_shut(doors, none, N, SELF), 0);
    assert_true(is_connected(from_there) && is_connected(to_there));

    doors[SELF].ports[1] = port; /* that of a server, which began to listen while MPI was initialised */
    mr_own_ports_add(port);
    assert_int_equal(mr_mpi_doors_shut(doors, lost, N, SELF), 2);
    assert_int_equal(recv(to_there[1], &port, 1, 0), 0);
    assert_int_equal(recv(from_there[0], &port, 1, 0), 0);
    assert_true(is_connected(unknown));
    assert_int_equal(mr_mpi_doors_shut(doors, lost, N, SELF), 0);
    close_both(from_there);
    close_both(to_there);
    close_both(unknown);
    for (size_t i = 0; i < sizeof listeners / sizeof listeners[0]; i++)
        close(listeners[i]);
}

/* In the place of a connection: it takes messages until it is full, and never brings one or fails. */
static void test_what_is_left(void **state) {
    (void)state;
    mr_mpi_door doors[N] = {0};
    atomic_bool lost[N] = {[LOST] = true};
    static char much[1 << 20];
    char c;
    int listener = listen_somewhere(&doors[LOST].ports[0]), ends[2];
    set_addresses(doors, false);
    connect_to(listener, doors[LOST].ports[0], ends);
    assert_int_equal(mr_mpi_doors_shut(doors, lost, N, SELF), 1);
    close(ends[1]);
    assert_true(write(ends[0], much, sizeof much) > 0);
    while (write(ends[0], much, sizeof much) > 0)
        continue;
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(recv(ends[0], &c, 1, 0), -1);
    assert_int_equal(errno, EAGAIN);
    close(ends[0]);
    close(listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ports),
        cmocka_unit_test(test_connections),
        cmocka_unit_test(test_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
