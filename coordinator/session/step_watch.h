/* coordinator/session/step_watch.h - whether a step thread hangs, by what the thread of the lifeline sees of it once in
 * a beat (0.5 s). A thread that runs steps looks for messages between the nodes of a graph, and takes CPU time within
 * them. Beats are counted, not time: a process that was stopped as a whole has had none.
 * Owns:    nothing; all zero at first. Threads: that of the lifeline. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_STEP_WATCH_H
#define MR_COORDINATOR_SESSION_STEP_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* After so many beats it hangs:
 * IDLE: it has neither looked nor taken CPU time while it runs steps, as a thread that was stopped.
 * DISK: the same while a thread of the process waits for a disk, which may keep other ranks waiting, too.
 * LOADING: the same while it runs no steps.
 * BLIND: it has run steps without a look. */
enum { STEP_IDLE_BEATS = 10, STEP_DISK_BEATS = 40, STEP_LOADING_BEATS = 600, STEP_BLIND_BEATS = 40 };

/* What is seen in a beat. */
typedef struct step_look {
    bool may_look; /* there are messages to look for: MPI runs */
    bool runs_steps;
    uint64_t n_looks;
    int64_t cpu_ns;
    bool (*waits_for_disk)(void); /* called only where it decides */
} step_look;

typedef struct step_watch {
    step_look last;
    int32_t n_idle, n_blind; /* beats */
} step_watch;

/* Call once in a beat. */
bool step_watch_hangs(step_watch *w, const step_look *now);
/* Whether a thread of this process waits for a disk or a file server, by the kernel's word (proc(5)). The step thread
 * itself may wait for a thread of its pool. */
bool step_watch_waits_for_disk(void);

#endif
