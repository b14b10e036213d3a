/* A shared object for LD_PRELOAD: the main thread takes a descriptor out of an epoll set 30 ms later than it wants to.
 * Whoever does the same on another thread meanwhile is the first, and the main thread gets ENOENT. */
// SPDX-License-Identifier: Apache-2.0
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) int epoll_ctl(int epoll_fd, int op, int fd, struct epoll_event *event) {
    const struct timespec pause = {.tv_nsec = 30000000};
    if (op == EPOLL_CTL_DEL && syscall(SYS_gettid) == getpid())
        nanosleep(&pause, NULL);
    return (int)syscall(SYS_epoll_ctl, epoll_fd, op, fd, event);
}
