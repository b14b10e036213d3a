/* coordinator/session/restart_limit.h - how often the stages of a job may begin again on the same ranks, after
 * malformed messages and messages that nobody takes. Many in a short time mean that beginning again does not help. A
 * cluster that meets one now and then is healthy, so only those of the last minutes count.
 * Owns:    nothing; all zero at first. Threads: the caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_RESTART_LIMIT_H
#define MR_COORDINATOR_SESSION_RESTART_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/clock.h"

enum { MR_RESTARTS = 8, MR_RESTART_MINUTES = 10 };

typedef struct mr_restart_limit {
    int64_t granted_ns[MR_RESTARTS]; /* the latest ones, in a ring */
    int64_t n;                       /* granted so far */
} mr_restart_limit;

/* Grants a restart at now_ns of mr_clock_now_ns(), unless MR_RESTARTS were granted in the MR_RESTART_MINUTES before. */
static inline bool mr_restart_limit_take(mr_restart_limit *limit, int64_t now_ns) {
    int64_t *oldest = &limit->granted_ns[limit->n % MR_RESTARTS];
    if (limit->n >= MR_RESTARTS && now_ns - *oldest < MR_RESTART_MINUTES * 60 * MR_NS_PER_S)
        return false;
    *oldest = now_ns;
    limit->n++;
    return true;
}

#endif
