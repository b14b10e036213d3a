/* worker/lobby/measure_wish.h - measures what a Measure message asks for, for its answer.
 * Owns:    nothing. Borrows: everything in the wish. Threads: as worker/lobby/measure.h.
 * Errors:  as worker/lobby/measure.h. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_MEASURE_WISH_H
#define MR_WORKER_LOBBY_MEASURE_WISH_H

#include "proto/facts_message.h"
#include "worker/lobby/lobby.h"
#include "worker/lobby/measure.h"

typedef struct mr_measure_wish {
    const Millrace__Measure *message;
    const mr_lobby_config *lobby;
    const mr_gguf *gguf; /* the model of the rank */
    const mr_model_info *info;
    /* As in mr_measure_config. */
    void (*progress)(void *ctx);
    bool (*told_to_end)(void *ctx);
    void *ctx;
} mr_measure_wish;

/* The answer to a message without `again`. */
MR_MUST_USE mr_status mr_measure_wish_facts(const mr_measure_wish *w, mr_facts_message *out, mr_err *err);
/* The times for the answer to one with it. */
MR_MUST_USE mr_status mr_measure_wish_again(const mr_measure_wish *w, mr_step_times *out, mr_err *err);

#endif
