// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_clock.h"

#include "engine/base/mem.h"
#include "engine/base/thread.h"

struct test_clock {
    mr_mutex lock; /* guards now_ns */
    int64_t now_ns, step_ns;
};

test_clock *test_clock_create(int64_t step_ns) {
    test_clock *clock = mr_alloc(sizeof *clock);
    if (!clock)
        return NULL;
    mr_mutex_init(&clock->lock);
    clock->step_ns = step_ns;
    return clock;
}

void test_clock_destroy(test_clock *clock) {
    if (clock)
        mr_mutex_deinit(&clock->lock);
    mr_free(clock);
}

int64_t test_clock_now_ns(test_clock *clock) {
    mr_mutex_lock(&clock->lock);
    int64_t now_ns = clock->now_ns;
    mr_mutex_unlock(&clock->lock);
    return now_ns;
}

void test_clock_advance(test_clock *clock, int64_t ns) {
    mr_mutex_lock(&clock->lock);
    clock->now_ns += ns;
    mr_mutex_unlock(&clock->lock);
}

int64_t test_timeline_end_ns(const test_timeline *t, mr_fence fence) {
    MR_ASSERT(fence <= t->last);
    return fence + TEST_TIMELINE_WORKS > t->last ? t->end_ns[fence % TEST_TIMELINE_WORKS] : 0;
}

int64_t test_timeline_add(test_timeline *t, int64_t cost_ns, bool on_host) {
    int64_t free_ns = test_timeline_end_ns(t, t->last);
    mr_mutex_lock(&t->clock->lock);
    int64_t begin_ns = free_ns > t->clock->now_ns ? free_ns : t->clock->now_ns;
    if (on_host)
        t->clock->now_ns = begin_ns + cost_ns;
    mr_mutex_unlock(&t->clock->lock);
    if (t->has_worked && begin_ns > free_ns) {
        t->idle_ns += begin_ns - free_ns;
        t->n_gaps++;
    }
    t->has_worked = true;
    t->busy_ns += cost_ns;
    t->end_ns[++t->last % TEST_TIMELINE_WORKS] = begin_ns + cost_ns;
    return begin_ns + cost_ns;
}

bool test_timeline_wait(test_timeline *t, mr_fence fence, bool may_end) {
    int64_t end_ns = test_timeline_end_ns(t, fence);
    mr_mutex_lock(&t->clock->lock);
    int64_t *now_ns = &t->clock->now_ns;
    if (*now_ns < end_ns)
        *now_ns = may_end ? *now_ns + t->clock->step_ns : end_ns;
    bool is_reached = *now_ns >= end_ns;
    mr_mutex_unlock(&t->clock->lock);
    return is_reached;
}

void test_timeline_reset(test_timeline *t) {
    t->busy_ns = t->idle_ns = 0;
    t->n_gaps = 0;
    t->has_worked = false;
}
