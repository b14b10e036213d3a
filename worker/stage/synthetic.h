/* worker/stage/synthetic.h - a stage that sleeps instead of computing, so that the scheduling of many stages can be
 * measured on one machine. Activations and ids go their ways as those of a real stage; their values mean nothing.
 * Owns:    nothing. Threads: bound to the step thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_SYNTHETIC_H
#define MR_WORKER_STAGE_SYNTHETIC_H

#include <stdbool.h>
#include <stdint.h>

/* What a step takes: fixed_ns + rows * row_ns. */
typedef struct mr_synthetic {
    int64_t fixed_ns, row_ns;
    bool (*told_to_end)(void *ctx); /* asked now and then. May be NULL */
    void *ctx;
} mr_synthetic;

/* Lets the system wake the calling thread to the moment, if it can. */
void mr_synthetic_prepare(void);
/* Sleeps until the step's time is over; false: it was told to end before. progress may be NULL: called now and then. */
bool mr_synthetic_run(const mr_synthetic *s, int32_t n_rows, void (*progress)(void *ctx), void *progress_ctx);
/* The id that a synthetic tail samples for a position: the same in every plan, below n_vocab. */
int32_t mr_synthetic_id(int64_t position, int32_t n_vocab);

#endif
