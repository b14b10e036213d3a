/* tests/support/test_clock.h - a simulated time that a host and its test devices share, so that a test can say which
 * works ran side by side. Nothing in it depends on how fast the machine is.
 * Each device has a timeline: its works lie one behind the other. A work begins when the host asks for it, or when the
 * device's last work has ended, if this is later. The time of the host moves when the host waits for a device
 * (test_timeline_wait), when it computes itself (on_host), and when the test says so (test_clock_advance).
 * Owns:    the clock owns nothing else. It outlives its timelines, which live in the devices.
 * Threads: thread-safe; the order of events is that of the calls, so a test that wants the same times in each run calls
 *          from one thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_TEST_CLOCK_H
#define MR_TESTS_SUPPORT_TEST_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/backend.h"

typedef struct test_clock test_clock;

/* The time is 0. step_ns: how far the host's time moves when the host asks for a fence that is not reached. NULL: no
 * memory. */
test_clock *test_clock_create(int64_t step_ns);
void test_clock_destroy(test_clock *clock);
int64_t test_clock_now_ns(test_clock *clock);
/* The host was busy with something else, or waited for a message. */
void test_clock_advance(test_clock *clock, int64_t ns);

enum { TEST_TIMELINE_WORKS = 1024 }; /* whose ends are known */

/* Zeros, but for the clock. A device without a clock has a timeline of zeros. */
typedef struct test_timeline {
    test_clock *clock;
    mr_fence last;                       /* fences are 1, 2, 3 ... in the order of the works */
    int64_t end_ns[TEST_TIMELINE_WORKS]; /* of the latest works: that of fence f at f % TEST_TIMELINE_WORKS */
    int64_t busy_ns, idle_ns;            /* sums of the works, and of the times between two works */
    int32_t n_gaps;                      /* times between two works that are not 0 */
    bool has_worked;                     /* since the counting began */
} test_timeline;

/* The work of the next fence. on_host: the host computes meanwhile, so its time moves to the work's end. Returns the
 * end. */
int64_t test_timeline_add(test_timeline *t, int64_t cost_ns, bool on_host);
/* Whether the fence is reached. may_end: the wait ends if it is not, and the host's time moves by a step; otherwise the
 * time moves to the fence's end. */
bool test_timeline_wait(test_timeline *t, mr_fence fence, bool may_end);
/* When the work of the fence ends; 0 for one that has ended long ago. */
int64_t test_timeline_end_ns(const test_timeline *t, mr_fence fence);
/* Begins to count anew. */
void test_timeline_reset(test_timeline *t);

#endif
