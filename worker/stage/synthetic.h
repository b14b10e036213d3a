/* worker/stage/synthetic.h - a stage that sleeps instead of computing, so that the scheduling of many stages can be
 * measured on one machine. Activations and ids are sent as by a real stage; their values mean nothing.
 * Owns:    nothing. Threads: bound to the step thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_SYNTHETIC_H
#define MR_WORKER_STAGE_SYNTHETIC_H

#include <stdbool.h>
#include <stdint.h>

/* A step takes fixed_ns + rows * row_ns. */
typedef struct mr_synthetic {
    int64_t fixed_ns, row_ns;
    bool (*told_to_end)(void *ctx); /* called between short sleeps; true ends the step. May be NULL */
    void *ctx;
} mr_synthetic;

/* Asks the system to wake the calling thread without timer slack. Linux only. */
void mr_synthetic_prepare(void);
/* Sleeps for the time of a step. false: told to end before. progress is called between short sleeps; may be NULL. */
bool mr_synthetic_run(const mr_synthetic *s, int32_t n_rows, void (*progress)(void *ctx), void *progress_ctx);
/* The id that a synthetic tail samples for a position: the same in every plan, below n_vocab. */
int32_t mr_synthetic_id(int64_t position, int32_t n_vocab);

#endif
