/* worker/worker_internal.h - the state of a stage's loop, which worker.c starts and ends, worker_steps.c runs steps
 * with, and worker_reports.c tells the coordinator about. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_WORKER_INTERNAL_H
#define MR_WORKER_WORKER_INTERNAL_H

#include "engine/base/arena.h"
#include "proto/link.h"
#include "worker/stage/grammars.h"
#include "worker/stage/sequences.h"
#include "worker/stage/stage.h"
#include "worker/stage/stage_clock.h"
#include "worker/stage/step_sums.h"
#include "worker/stage/tail.h"
#include "worker/worker.h"

typedef struct worker {
    const mr_worker_config *config;
    mr_gguf *gguf;
    mr_model_info info;
    int32_t stage_idx, n_stages;
    int32_t head, next, previous, tail_peer; /* endpoints; next, previous: -1: none */
    uint32_t max_out_rows;
    int32_t ring_slots;
    mr_msg_limits limits;
    mr_stage *stage;
    mr_sequences *sequences;
    mr_tail *tail;         /* last stage only */
    mr_grammars *grammars; /* last stage only; NULL: the plan wants none */
    mr_inbox *control, *x_in, *tokens_in;
    mr_outbox *report, *x_out;
    mr_arena *control_arena, *tokens_arena; /* allocated in full at start, so that a step allocates nothing */
    const Millrace__StepPlan *pending; /* the next step, in control_arena; the message is released after the step */
    uint32_t n_rows;                   /* of the step that runs */
    uint64_t step_run;                 /* the last step that this stage has run; 0: none */
    uint64_t step_tokens;              /* the last step whose ids have come back */
    int64_t progress_ns, served_ns;    /* time of the last progress report; of the last mr_file_server_serve */
    size_t fetch_bytes, layer_bytes;   /* bytes to fetch from other ranks; bytes of the tensors of the layers */
    mr_stage_clock clock;
    mr_step_sums sums;
    uint64_t in_bytes, out_bytes; /* activations received and sent */
    mr_phase waits_for;           /* the phase in which the pending step waits */
    bool stop;
} worker;

static inline bool worker_is_head(const worker *w) {
    return w->stage_idx == 0;
}
static inline bool worker_is_tail(const worker *w) {
    return w->stage_idx == w->n_stages - 1;
}
static inline bool worker_told_to_end(const worker *w) {
    return w->config->told_to_end && w->config->told_to_end(w->config->told_to_end_ctx);
}

/* Reports the progress of fetching and loading together, but not more often than somebody can see. */
void worker_report_progress(worker *w, size_t done_bytes, size_t total_bytes);
mr_status worker_report_ready(worker *w, mr_err *err);
/* Reports spans when enough for a message are recorded; with `all`, at the end, all of them. Without `all`, spans stay
 * recorded while no buffer is free. */
mr_status worker_report_spans(worker *w, bool all, mr_err *err);
/* Reports the times of steps and phases when the next report is due. If no buffer is free, the sums stay and grow. */
mr_status worker_report_step_sums(worker *w, int64_t now_ns, mr_err *err);
/* The last reports of a stage after a shutdown message: remaining spans and seconds. */
mr_status worker_report_end(worker *w, mr_err *err);
/* Reports why the stage ends, and waits until the coordinator has heard it. */
void worker_report_failure(worker *w, const mr_err *cause);

/* Runs the pending step if nothing is missing. *did: the step ran. */
mr_status worker_try_step(worker *w, bool *did, mr_err *err);

#endif
