/* engine/base/clock.h - monotonic time in nanoseconds.
 * Threads: thread-safe. Tests may freeze the clock and move it by hand. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_CLOCK_H
#define MR_ENGINE_BASE_CLOCK_H

#include <stdint.h>

#define MR_NS_PER_MS INT64_C(1000000)
#define MR_NS_PER_S INT64_C(1000000000)
#define MR_NEVER INT64_MAX /* a deadline that never comes */

int64_t mr_clock_now_ns(void);
/* For how long the calling thread has had a core; real even where the clock is frozen. */
int64_t mr_clock_thread_ns(void);

/* Tests: the clock stands at now_ns until it is set again; a negative value returns to real time. */
void mr_clock_freeze(int64_t now_ns);

#endif
