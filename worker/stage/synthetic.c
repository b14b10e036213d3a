/* worker/stage/synthetic.c - sleeps for the time of a step, in slices, so that the channel makes progress. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/synthetic.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "engine/base/clock.h"
#include "engine/base/rng.h"

/* A real stage calls progress between groups of nodes. A synthetic stage calls less often, so that many stages fit on
 * few cores. */
static const int64_t PROGRESS_INTERVAL_NS = MR_NS_PER_MS / 2, LOOK_INTERVAL_NS = 50 * MR_NS_PER_MS;

void mr_synthetic_prepare(void) {
#ifdef __linux__
    (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); /* 50 us by default */
#endif
}

static void sleep_until(int64_t ns) {
    const struct timespec until = {.tv_sec = (time_t)(ns / MR_NS_PER_S), .tv_nsec = (long)(ns % MR_NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

bool mr_synthetic_run(const mr_synthetic *s, int32_t n_rows, void (*progress)(void *ctx), void *progress_ctx) {
    int64_t now = mr_clock_now_ns(), end = now + s->fixed_ns + n_rows * s->row_ns;
    int64_t slice = progress ? PROGRESS_INTERVAL_NS : LOOK_INTERVAL_NS;
    for (; end - now > slice; now = mr_clock_now_ns()) {
        sleep_until(now + slice);
        if (progress)
            progress(progress_ctx);
        if (s->told_to_end && s->told_to_end(s->ctx))
            return false;
    }
    if (end > now)
        sleep_until(end);
    return true;
}

int32_t mr_synthetic_id(int64_t position, int32_t n_vocab) {
    return (int32_t)(mr_rng_u64(0, 0, (uint64_t)position) % (uint64_t)n_vocab);
}
