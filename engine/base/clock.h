/* engine/base/clock.h - monotonic time in nanoseconds.
 * Threads: thread-safe. Tests may freeze the clock and set its time. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_CLOCK_H
#define MR_ENGINE_BASE_CLOCK_H

#include <stdint.h>

#define MR_NS_PER_MS INT64_C(1000000)
#define MR_NS_PER_S INT64_C(1000000000)
#define MR_NEVER INT64_MAX /* a deadline that never comes */

int64_t mr_clock_now_ns(void);
/* The CPU time that the calling thread has used. A frozen clock does not change it. */
int64_t mr_clock_thread_ns(void);

/* For tests: stops the clock at now_ns until the next call. A negative value returns to real time. */
void mr_clock_freeze(int64_t now_ns);

#endif
