/* tests/support/share.h - how many cases of a long list a test runs. MILLRACE_TEST_SHARE=n: one of n cases. Which of
 * the n shares that is, says MILLRACE_TEST_DRAW, any number; the shares together have all cases. MILLRACE_TEST_LONG=1:
 * all cases, and those that take hours, such as full products. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_SHARE_H
#define MR_TESTS_SUPPORT_SHARE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline bool share_is_long(void) {
    const char *text = getenv("MILLRACE_TEST_LONG");
    return text && strcmp(text, "1") == 0;
}

/* At least 1. Long runs have all cases. */
static inline int share_get(void) {
    const char *text = getenv("MILLRACE_TEST_SHARE");
    int n = text ? atoi(text) : 1;
    return n > 1 && !share_is_long() ? n : 1;
}

/* Whether the build is slow, or the check a quick one: some tests leave out more than cases of a list then. */
static inline bool share_is_small(void) {
    return share_get() > 2;
}

static inline int share_draw(void) {
    const char *text = getenv("MILLRACE_TEST_DRAW");
    return text ? (int)(strtoul(text, NULL, 10) % 1000000) : 0;
}

/* The first of n cases of which a test takes every share_get()th. */
static inline int share_first(int n) {
    return share_draw() % (share_get() < n ? share_get() : n);
}

/* Whether to leave out the next case of a list; *count starts at 0. The first case is in every share, so that a test of
 * few cases always has one. */
static inline bool share_skips(int *count) {
    uint32_t mixed = (uint32_t)*count * 2654435761u >> 16; /* mixed, because lists repeat patterns */
    return (*count)++ > 0 && mixed % (uint32_t)share_get() != (uint32_t)(share_draw() % share_get());
}

#endif
