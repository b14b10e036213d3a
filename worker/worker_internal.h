/* worker/worker_internal.h - the state of a stage's loop, which worker.c starts and ends, worker_steps.c runs steps
 * with, and worker_reports.c tells the coordinator about. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_WORKER_INTERNAL_H
#define MR_WORKER_WORKER_INTERNAL_H

#include "backends/pinned.h"
#include "engine/base/arena.h"
#include "proto/device_link.h"
#include "proto/link.h"
#include "worker/stage/grammars.h"
#include "worker/stage/sequences.h"
#include "worker/stage/stage.h"
#include "worker/stage/stage_clock.h"
#include "worker/stage/step_sums.h"
#include "worker/stage/tail.h"
#include "worker/worker.h"

/* A step from its message to its end. */
typedef struct worker_step {
    mr_arena *arena;                /* memory of plan, allocated in full, so that a step allocates nothing */
    const Millrace__StepPlan *plan; /* the message itself is released at once */
    uint32_t n_rows;
    int64_t start_ns; /* without the time of waiting for send buffers, as note_step says */
    int64_t host_ns;  /* that this thread has worked for the step */
} worker_step;

/* The hop from the previous stage, or to the next one. */
typedef struct worker_hop {
    mr_device_link *link;
    mr_way way;       /* that the plan gives it */
    mr_pinned pinned; /* the memory of the link on the host, for the devices of the stage */
    /* With a way from device to device: the device, and the slots in its memory. */
    mr_backend *device;
    mr_buffer *slots;
} worker_hop;

typedef struct worker {
    const mr_worker_config *config;
    mr_gguf *gguf;
    mr_model_info info;
    int32_t *expert_order; /* of the plan, for the stage; NULL: the plan has none */
    int32_t stage_idx, n_stages;
    int32_t kv_from, n_sent_blocks;          /* the rank that sends KV blocks of the stage, -1: none; how many */
    bool kv_ahead;                           /* most of them were sent before, and are kept */
    bool has_kv;                             /* the KV blocks of the plan's kv_epoch are here */
    int32_t head, next, previous, tail_peer; /* endpoints; next, previous: -1: none */
    bool must_ways;                          /* as in Millrace__Plan */
    uint32_t max_out_rows;
    int32_t ring_slots;
    mr_msg_limits limits;
    mr_stage *stage;
    mr_sequences *sequences;
    mr_tail *tail;         /* last stage only */
    mr_grammars *grammars; /* last stage only; NULL: the plan wants none */
    mr_inbox *control, *tokens_in;
    mr_outbox *report;
    worker_hop in, out;  /* of the activations; without a link: there is no such neighbour */
    mr_backends devices; /* of the stage, borrowed */
    bool knows_place;    /* in the plan */
    bool is_linking;     /* the stage is loaded, and the hops are not open yet */
    mr_arena *tokens_arena;
    worker_step steps[MR_STAGE_STEPS]; /* a ring: the steps under way, then the pending one */
    uint64_t n_begun, n_ended;         /* steps under way: from n_ended to n_begun */
    bool has_pending;                  /* steps[n_begun % MR_STAGE_STEPS] waits for its input */
    bool holds_input;                  /* the message at x_in belongs to a step under way */
    uint64_t step_run;                 /* the last step that this stage has run; 0: none */
    uint64_t step_tokens;              /* the last step whose ids have come back */
    int64_t progress_ns, served_ns;    /* time of the last progress report; of the last mr_file_server_serve */
    size_t fetch_bytes, layer_bytes;   /* bytes to fetch from other ranks; bytes of the tensors of the layers */
    mr_stage_clock clock;
    mr_step_sums sums;
    uint64_t in_bytes, out_bytes; /* activations received and sent */
    mr_phase waits_for;           /* the phase in which the pending step waits */
    bool stop;
    atomic_bool must_stop; /* the step under way: this stage was told to end */
    int64_t moved_ns;      /* when a step under way has last got on, as far as is seen */
    int64_t looked_ns;     /* when a step has last looked whether it was */
} worker;

static inline bool worker_is_head(const worker *w) {
    return w->stage_idx == 0;
}
static inline bool worker_is_tail(const worker *w) {
    return w->stage_idx == w->n_stages - 1;
}
/* The step that is pending, or whose message comes next. It is free while the stage has room for a further step. */
static inline worker_step *worker_next_step(worker *w) {
    return &w->steps[w->n_begun % MR_STAGE_STEPS];
}
static inline bool worker_is_busy(const worker *w) {
    return w->n_begun != w->n_ended;
}
static inline bool worker_told_to_end(const worker *w) {
    return w->config->told_to_end && w->config->told_to_end(w->config->told_to_end_ctx);
}

/* Opens the links to the neighbours. Those of activations may need worker_poll_hops until they are open. */
mr_status worker_open_links(worker *w, mr_err *err);
/* Goes on with the agreement of the hops and with transfers between devices. */
mr_status worker_poll_hops(worker *w, bool *did, mr_err *err);
bool worker_hops_are_open(const worker *w);
/* Pins the memory of the hops on the host for the devices of the stage. */
void worker_use_hops(worker *w, const mr_backends *devices);
/* Gives up transfers, before the stage frees memory of the device, which waits for all work of the device. */
void worker_stop_hops(worker *w);
void worker_close_hops(worker *w);
/* Until when a wait for messages may last, at most until due_ns. */
int64_t worker_wait_ns(const worker *w, int64_t due_ns);

/* Reports the progress of fetching and loading together, but not more often than somebody can see. */
void worker_report_progress(worker *w, size_t done_bytes, size_t total_bytes);
mr_status worker_report_ready(worker *w, mr_err *err);
/* Reports spans when enough for a message are recorded; with `all`, at the end, all of them. Without `all`, spans stay
 * recorded while no buffer is free. */
mr_status worker_report_spans(worker *w, bool all, mr_err *err);
/* Reports the times of steps and phases when the next report is due. If no buffer is free, the sums stay and grow. */
mr_status worker_report_step_sums(worker *w, int64_t now_ns, mr_err *err);
/* Reports what the stage has counted; nothing but the end where it does not count. */
mr_status worker_report_use_counts(worker *w, mr_err *err);
/* The last reports of a stage after a shutdown message: remaining spans and seconds. */
mr_status worker_report_end(worker *w, mr_err *err);
/* Logs how the experts of the stage were shared, if they were. */
void worker_log_expert_share(const worker *w);
/* Reports why the stage ends, and waits until the coordinator has heard it. false: no report could be sent. */
bool worker_report_failure(worker *w, const mr_err *cause);

/* Starts the pending step if nothing is missing. *did: it was started. */
mr_status worker_start_step(worker *w, bool *did, mr_err *err);
/* Waits for the oldest step under way until the deadline, 0: not at all. If it has ended, sends its results. *did: it
 * has ended. */
mr_status worker_end_step(worker *w, int64_t deadline_ns, bool *did, mr_err *err);
/* At the end of the stage: waits for the steps under way, whose results nobody wants. MR_E_DEVICE: the device does not
 * end them. */
mr_status worker_await_steps(worker *w, mr_err *err);

#endif
