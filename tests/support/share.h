/* tests/support/share.h - how many cases of a long list a test runs. MILLRACE_TEST_SHARE=n: one of n cases, for
 * emulators and sanitizers, which are slow. MILLRACE_TEST_LONG=1: also cases that take hours, such as full products. */
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

/* Whether to leave out the next case of a list; *count starts at 0. */
static inline bool share_skips(int *count) {
    uint32_t mixed = (uint32_t)(*count)++ * 2654435761u >> 16; /* mixed, because lists repeat patterns */
    return mixed % (uint32_t)share_get() != 0;
}

#endif
