/* engine/base/clock.c - the monotonic clock, which tests can freeze. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"

#include <stdatomic.h>
#include <time.h>

static atomic_int_fast64_t frozen_ns = -1;

int64_t mr_clock_now_ns(void) {
    int64_t frozen = atomic_load_explicit(&frozen_ns, memory_order_relaxed);
    if (frozen >= 0)
        return frozen;
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * MR_NS_PER_S + ts.tv_nsec;
}

int64_t mr_clock_thread_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * MR_NS_PER_S + ts.tv_nsec;
}

void mr_clock_freeze(int64_t now_ns) {
    atomic_store(&frozen_ns, now_ns);
}
