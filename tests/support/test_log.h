/* tests/support/test_log.h - what the program logs between two calls, in a file in memory.
 * Owns:    the file, from begin to end. Threads: one test thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_TEST_LOG_H
#define MR_TESTS_SUPPORT_TEST_LOG_H

#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "tests/support/test.h"

typedef struct test_log {
    int fd, n_lines;
    char text[4096]; /* after test_log_end */
} test_log;

static inline void test_log_begin(test_log *log) {
    *log = (test_log){.fd = memfd_create("log", MFD_CLOEXEC)};
    assert_true(log->fd >= 0);
    mr_log_set_fd(log->fd);
}

static inline void test_log_end(test_log *log) {
    mr_log_set_fd(2);
    ssize_t n = pread(log->fd, log->text, sizeof log->text - 1, 0);
    assert_true(n >= 0);
    for (ssize_t i = 0; i < n; i++)
        log->n_lines += log->text[i] == '\n';
    close(log->fd);
}

#endif
