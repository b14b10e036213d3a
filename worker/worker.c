/* worker/worker.c - the loop of a stage. Start, steps and reports stand in one file, because they share one state and
 * call each other. Control messages are taken in order; a step stays pending until its input has come. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/worker.h"

#include <string.h>

#include "engine/base/arena.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "proto/link.h"
#include "worker/files/file_layers.h"
#include "worker/stage/grammars.h"
#include "worker/stage/sequences.h"
#include "worker/stage/stage.h"
#include "worker/stage/stage_clock.h"
#include "worker/stage/step.h"
#include "worker/stage/step_sums.h"
#include "worker/stage/tail.h"

enum {
    SPANS_AT_ONCE = 512,          /* spans in one report */
    PLAN_ARENA_BYTES = 256 << 10, /* for messages before the plan, which sets the limits */
    PROGRESS_INTERVAL_NS = 50000000,
};
/* A span is five numbers, two of them below 2^32. */
_Static_assert(64 + SPANS_AT_ONCE * (3 * 10 + 2 * 5) <= MR_MAX_REPORT_BYTES, "spans may not fit their report");

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

static const int64_t END_PATIENCE_NS = MR_NS_PER_S / 2;

static bool is_head(const worker *w) {
    return w->stage_idx == 0;
}
static bool is_tail(const worker *w) {
    return w->stage_idx == w->n_stages - 1;
}

/* --- Reports to the coordinator ---------------------------------------------------------------------------------- */

static bool told_to_end(const worker *w) {
    return w->config->told_to_end && w->config->told_to_end(w->config->told_to_end_ctx);
}

/* Sends a report. Waits for a free buffer until the deadline; after the deadline the report is lost. MR_E_CANCELLED:
 * the deadline is MR_NEVER, and this stage was told to end. */
static mr_status send_report(worker *w, ProtobufCMessage *body, int64_t deadline_ns, mr_err *err) {
    const Millrace__Report report = mr_msg_report_of(body);
    bool sent = false;
    mr_status status = mr_outbox_send_message(w->report, &report.base, &sent, err);
    while (status == MR_OK && !sent && mr_clock_now_ns() < deadline_ns) {
        if (deadline_ns == MR_NEVER && told_to_end(w))
            return mr_err_set(err, MR_E_CANCELLED, "%s", "");
        status = mr_channel_wait(w->config->channel, deadline_ns, err);
        if (status == MR_OK)
            status = mr_outbox_send_message(w->report, &report.base, &sent, err);
    }
    return status;
}

/* Reports the progress of fetching and loading together, at most once in PROGRESS_INTERVAL_NS. */
static void report_progress(worker *w, size_t done_bytes, size_t total_bytes) {
    mr_err ignored;
    int64_t now = mr_clock_now_ns();
    if (now - w->progress_ns < PROGRESS_INTERVAL_NS && done_bytes < total_bytes)
        return;
    w->progress_ns = now;
    Millrace__LoadProgress progress = MILLRACE__LOAD_PROGRESS__INIT;
    progress.stage = (uint32_t)w->stage_idx;
    progress.done_bytes = done_bytes;
    progress.total_bytes = total_bytes;
    if (send_report(w, &progress.base, 0, &ignored) != MR_OK)
        mr_log_write(MR_LOG_DEBUG, "worker", "progress was not reported: %s", ignored.text);
}

/* Called by the file client during the fetch. */
static void note_fetched(void *ctx, size_t done_bytes, size_t total_bytes) {
    worker *w = ctx;
    w->fetch_bytes = total_bytes;
    if (w->layer_bytes > 0)
        report_progress(w, done_bytes, total_bytes + w->layer_bytes);
}

/* Called after each tensor. Serves the file to other ranks for as long as loading took since the last call. */
static void note_loaded(void *ctx, size_t done_bytes, size_t total_bytes) {
    worker *w = ctx;
    mr_channel_progress(w->config->channel);
    mr_file_server_serve(w->config->file_server, mr_clock_now_ns() - w->served_ns);
    w->served_ns = mr_clock_now_ns();
    report_progress(w, w->fetch_bytes + done_bytes, w->fetch_bytes + total_bytes);
}

static mr_status report_ready(worker *w, mr_err *err) {
    mr_stage_sizes sizes = mr_stage_get_sizes(w->stage);
    Millrace__Ready ready = MILLRACE__READY__INIT;
    ready.stage = (uint32_t)w->stage_idx;
    ready.weight_bytes = sizes.weight_bytes;
    ready.kv_bytes = sizes.kv_bytes;
    ready.work_bytes = sizes.work_bytes;
    ready.fetched_bytes = w->config->file_client ? mr_file_client_moved_bytes(w->config->file_client) : 0;
    return send_report(w, &ready.base, MR_NEVER, err);
}

/* Reports spans when SPANS_AT_ONCE of them are recorded; with `all`, at the end, all of them. Without `all`, spans stay
 * recorded while no buffer is free. */
static mr_status report_spans(worker *w, bool all, mr_err *err) {
    mr_span spans[SPANS_AT_ONCE];
    uint32_t phase[SPANS_AT_ONCE], rows[SPANS_AT_ONCE];
    uint64_t step[SPANS_AT_ONCE], start_ns[SPANS_AT_ONCE], end_ns[SPANS_AT_ONCE];
    int64_t deadline = all ? mr_clock_now_ns() + END_PATIENCE_NS : 0;
    mr_status status = MR_OK;
    uint8_t *payload = NULL;
    while (status == MR_OK && w->clock.n_spans >= (all ? 1 : SPANS_AT_ONCE)) {
        Millrace__Spans message = MILLRACE__SPANS__INIT;
        status = mr_outbox_reserve(w->report, &payload, err);
        if (status != MR_OK || (!payload && !all))
            return status;
        size_t n = (size_t)mr_stage_clock_take(&w->clock, spans, SPANS_AT_ONCE);
        for (size_t i = 0; i < n; i++) {
            phase[i] = spans[i].phase;
            rows[i] = spans[i].rows;
            step[i] = spans[i].step;
            start_ns[i] = (uint64_t)spans[i].start_ns;
            end_ns[i] = (uint64_t)spans[i].end_ns;
        }
        message.stage = (uint32_t)w->stage_idx;
        message.n_phase = message.n_rows = message.n_step = message.n_start_ns = message.n_end_ns = n;
        message.phase = phase;
        message.rows = rows;
        message.step = step;
        message.start_ns = start_ns;
        message.end_ns = end_ns;
        status = send_report(w, &message.base, deadline, err);
    }
    return status;
}

/* Reports the time in each phase since the start, and the steps, rows and bytes of this time. deadline_ns: as in
 * send_report. */
static mr_status report_seconds(worker *w, bool ended, int64_t deadline_ns, mr_err *err) {
    uint64_t ns[MR_PHASE_COUNT];
    Millrace__Seconds seconds = MILLRACE__SECONDS__INIT;
    for (int i = 0; i < MR_PHASE_COUNT; i++)
        ns[i] = (uint64_t)w->clock.ns[i];
    seconds.stage = (uint32_t)w->stage_idx;
    seconds.n_ns = MR_PHASE_COUNT;
    seconds.ns = ns;
    seconds.steps = w->clock.n_steps;
    seconds.dropped_spans = w->clock.n_dropped;
    seconds.ended = ended;
    seconds.rows = w->clock.n_rows;
    seconds.in_bytes = w->in_bytes;
    seconds.out_bytes = w->out_bytes;
    return send_report(w, &seconds.base, deadline_ns, err);
}

/* Reports the times of steps and phases when the next report is due. If no buffer is free, the sums stay and grow. */
static mr_status report_step_sums(worker *w, int64_t now_ns, mr_err *err) {
    Millrace__StepSums sums = MILLRACE__STEP_SUMS__INIT;
    const Millrace__Report report = mr_msg_report_of(&sums.base);
    bool sent = true;
    mr_status status = MR_OK;
    if (now_ns < mr_step_sums_due_ns(&w->sums))
        return MR_OK;
    sums.stage = (uint32_t)w->stage_idx;
    mr_step_sums_fill(&w->sums, &sums);
    if (w->sums.has_news)
        status = mr_outbox_send_message(w->report, &report.base, &sent, err);
    w->sums.reported_ns = now_ns; /* so that an idle stage tries again later, not at once */
    if (status == MR_OK && sent)
        mr_step_sums_clear(&w->sums, now_ns);
    return status == MR_OK && sent ? report_seconds(w, false, 0, err) : status;
}

/* The last reports of a stage after a shutdown message: remaining spans and seconds. */
static mr_status report_end(worker *w, mr_err *err) {
    int64_t deadline = mr_clock_now_ns() + END_PATIENCE_NS;
    mr_stage_clock_enter(&w->clock, MR_PHASE_WIRE);
    mr_status status = report_spans(w, true, err);
    if (status == MR_OK)
        status = report_seconds(w, true, deadline, err);
    if (status == MR_OK)
        mr_outbox_flush(w->report, deadline);
    return status;
}

/* Waits until the coordinator has received all reports and closed its links. Without this wait a coordinator that is
 * still opening its links would find a lost peer instead of the Failure message. */
static void linger(worker *w, int64_t deadline_ns) {
    mr_err ignored;
    mr_frame frame;
    const uint8_t *payload;
    bool flushed = false;
    while (mr_clock_now_ns() < deadline_ns && !told_to_end(w)) {
        payload = NULL;
        mr_status status = mr_outbox_flushed(w->report, &flushed, &ignored);
        if (status == MR_OK && w->control)
            status = mr_inbox_peek(w->control, &frame, &payload, &ignored);
        if (status == MR_OK && payload)
            status = mr_inbox_release(w->control, &ignored); /* control messages are dropped now */
        else if (status == MR_OK && !(flushed && !w->control))
            status = mr_channel_wait(w->config->channel, deadline_ns, &ignored);
        else if (status != MR_E_PROTOCOL)
            return;
    }
}

static void report_failure(worker *w, const mr_err *cause) {
    mr_err ignored;
    Millrace__Failure failure = MILLRACE__FAILURE__INIT;
    failure.stage = w->stage_idx < 0 ? 0 : (uint32_t)w->stage_idx; /* -1: this rank was not found in the plan */
    failure.status = (uint32_t)cause->status;
    failure.text = (char *)(uintptr_t)cause->text;
    int64_t deadline = mr_clock_now_ns() + 2 * MR_NS_PER_S;
    if (w->report && send_report(w, &failure.base, deadline, &ignored) == MR_OK)
        linger(w, deadline);
}

/* --- Start ------------------------------------------------------------------------------------------------------- */

static mr_status take_memory(size_t bytes, mr_arena **arena, mr_err *err) {
    *arena = mr_arena_create_whole(bytes);
    return *arena ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for messages of %zu bytes", bytes);
}

static bool told_to_end_fetch(void *ctx) {
    return told_to_end(ctx);
}

static mr_status open_model(worker *w, mr_err *err) {
    const mr_worker_config *c = w->config;
    const mr_file_wait wait = {told_to_end_fetch, NULL, w};
    if (c->problem)
        return mr_err_set(err, c->problem->status, "%s", c->problem->text);
    return c->file_client ? mr_file_layers_open(c->file_client, &wait, &w->gguf, err)
                          : mr_gguf_open(c->model_path, &w->gguf, err);
}

static mr_status fetch_layers(worker *w, mr_layer_range range, mr_err *err) {
    const mr_file_wait wait = {told_to_end_fetch, note_fetched, w};
    int64_t start_ns = mr_clock_now_ns();
    w->layer_bytes = mr_file_layers_bytes(w->gguf, &w->info, range);
    mr_status status = mr_file_layers_fetch(w->config->file_client, w->gguf, &w->info, &range, &wait, err);
    mr_log_write(MR_LOG_DEBUG, "worker", "%llu bytes of the model file were fetched, those of the layers in %.3f s",
                 (unsigned long long)mr_file_client_moved_bytes(w->config->file_client),
                 (double)(mr_clock_now_ns() - start_ns) / (double)MR_NS_PER_S);
    return status;
}

static mr_status create_stage(worker *w, const mr_stage_config *config, mr_err *err) {
    const mr_file_wait wait = {told_to_end_fetch, NULL, w};
    bool fetches = w->config->file_client && !config->synthetic; /* a synthetic stage reads no layers */
    mr_status status = fetches ? fetch_layers(w, config->range, err) : MR_OK;
    w->served_ns = mr_clock_now_ns();
    if (status == MR_OK)
        status = mr_stage_create(config, w->config->backend, note_loaded, w, &w->stage, err);
    if (status == MR_OK && fetches)
        status = mr_file_client_settle(w->config->file_client, &wait, err);
    return status;
}

/* Opens the links to the coordinator and the model, before the plan comes. */
static mr_status start(worker *w, mr_err *err) {
    const mr_worker_config *c = w->config;
    mr_status status = mr_outbox_create(c->channel, c->coordinator, MR_LINK_REPORT, c->epoch, MR_REPORT_SLOTS,
                                        MR_MAX_REPORT_BYTES, &w->report, err);
    if (status == MR_OK)
        status = mr_inbox_create(c->channel, c->coordinator, MR_LINK_CONTROL, c->epoch, MR_CONTROL_SLOTS,
                                 MR_MAX_CONTROL_BYTES, &w->control, err);
    if (status == MR_OK)
        status = open_model(w, err);
    if (status == MR_OK)
        status = mr_model_info_read(w->gguf, &w->info, err);
    if (status == MR_OK)
        status = take_memory(PLAN_ARENA_BYTES, &w->control_arena, err);
    return status;
}

/* Finds this stage and its neighbours in the plan. */
static mr_status find_place(worker *w, const Millrace__Plan *plan, mr_layer_range *range, mr_synthetic *synthetic,
                            mr_err *err) {
    w->stage_idx = w->next = w->previous = -1;
    w->n_stages = (int32_t)plan->n_stages;
    for (int32_t i = 0; i < w->n_stages; i++) {
        const Millrace__StageRange *s = plan->stages[i];
        if (s->rank >= (uint32_t)w->config->coordinator)
            return mr_err_set(err, MR_E_PROTOCOL, "the plan names rank %u of %d", s->rank, w->config->coordinator);
        if ((int32_t)s->rank != w->config->channel->self)
            continue;
        if (w->stage_idx >= 0)
            return mr_err_set(err, MR_E_PROTOCOL, "the plan names rank %u twice: stages %d and %d", s->rank,
                              w->stage_idx, i);
        w->stage_idx = i;
        *range = (mr_layer_range){(int32_t)s->first_layer, (int32_t)s->last_layer};
        *synthetic = (mr_synthetic){.fixed_ns = (int64_t)s->synthetic_fixed_ns,
                                    .row_ns = (int64_t)s->synthetic_row_ns,
                                    .told_to_end = w->config->told_to_end,
                                    .ctx = w->config->told_to_end_ctx};
    }
    if (w->stage_idx < 0)
        return mr_err_set(err, MR_E_PROTOCOL, "the plan gives rank %d no layers", w->config->channel->self);
    uint32_t last = plan->stages[w->n_stages - 1]->last_layer;
    if (last != (uint32_t)w->info.n_layers)
        return mr_err_set(err, MR_E_PROTOCOL, "the plan cuts %u layers, the model has %d", last, w->info.n_layers);
    w->head = (int32_t)plan->stages[0]->rank;
    w->tail_peer = (int32_t)plan->stages[w->n_stages - 1]->rank;
    if (!is_head(w))
        w->previous = (int32_t)plan->stages[w->stage_idx - 1]->rank;
    if (!is_tail(w))
        w->next = (int32_t)plan->stages[w->stage_idx + 1]->rank;
    return MR_OK;
}

static mr_status open_links(worker *w, mr_err *err) {
    mr_channel *ch = w->config->channel;
    uint32_t epoch = w->config->epoch;
    size_t x_bytes = (size_t)w->limits.max_rows * (size_t)w->info.d_model * sizeof(float);
    int32_t hop_slots = w->ring_slots < MR_MAX_HOP_SLOTS ? w->ring_slots : MR_MAX_HOP_SLOTS;
    mr_status status = MR_OK;
    if (w->previous >= 0)
        status = mr_inbox_create(ch, w->previous, MR_LINK_ACTIVATIONS, epoch, hop_slots, x_bytes, &w->x_in, err);
    if (status == MR_OK && w->next >= 0)
        status = mr_outbox_create(ch, w->next, MR_LINK_ACTIVATIONS, epoch, hop_slots, x_bytes, &w->x_out, err);
    if (status == MR_OK && is_head(w) && !is_tail(w))
        status = mr_inbox_create(ch, w->tail_peer, MR_LINK_TOKENS, epoch, w->ring_slots,
                                 mr_tokens_message_bytes(w->limits.max_rows), &w->tokens_in, err);
    if (status == MR_OK && is_tail(w)) {
        mr_tail_config tail = {.channel = ch,
                               .coordinator = w->config->coordinator,
                               .head = w->head,
                               .epoch = epoch,
                               .n_slots = w->ring_slots,
                               .limits = w->limits,
                               .max_out_rows = w->max_out_rows,
                               .n_embd = (uint32_t)w->info.d_model,
                               .clock = &w->clock,
                               .told_to_end = w->config->told_to_end,
                               .told_to_end_ctx = w->config->told_to_end_ctx};
        status = mr_tail_create(&tail, &w->tail, err);
    }
    return status;
}

/* A model file without a tokenizer has no grammars: sequences with a grammar fail, not the stage. */
static mr_status load_grammars(worker *w, mr_err *err) {
    mr_status status = mr_grammars_create(w->gguf, w->info.vocab_size, &w->grammars, err);
    if (status == MR_OK)
        mr_sequences_set_grammars(w->sequences, w->grammars);
    return status == MR_E_NOT_FOUND ? MR_OK : status;
}

/* Loads the layers that the plan gives to this stage, opens the links of the stage, and reports ready. */
static mr_status take_plan(worker *w, const Millrace__Plan *plan, mr_err *err) {
    mr_layer_range range;
    mr_synthetic synthetic;
    mr_status status = find_place(w, plan, &range, &synthetic, err);
    if (status != MR_OK)
        return status;
    w->limits = (mr_msg_limits){.n_stages = (uint32_t)w->n_stages,
                                .max_rows = plan->max_rows,
                                .max_sequences = plan->max_sequences,
                                .max_context = plan->max_context,
                                .n_kv_blocks = plan->n_kv_blocks,
                                .n_vocab = (uint32_t)w->info.vocab_size};
    w->max_out_rows = plan->max_out_rows;
    w->ring_slots = (int32_t)plan->ring_slots;
    mr_stage_config config = {.gguf = w->gguf,
                              .info = &w->info,
                              .range = range,
                              .max_rows = (int32_t)plan->max_rows,
                              .max_out_rows = (int32_t)plan->max_out_rows,
                              .max_sequences = (int32_t)plan->max_sequences,
                              .max_context = (int32_t)plan->max_context,
                              .n_kv_blocks = (int32_t)plan->n_kv_blocks,
                              .kv_type = (mr_type)plan->kv_type,
                              .map_weights = plan->map_weights,
                              .synthetic = plan->synthetic ? &synthetic : NULL};
    if (w->config->devices && plan->fast_numerics) {
        config.devices = w->config->devices->list;
        config.measures_products = w->config->devices->is_measured;
    }
    bool trace = plan->trace, grammars = plan->grammars && !plan->synthetic && is_tail(w);
    /* The plan lies in the arena that is replaced here. No code below reads the plan. */
    mr_arena_destroy(w->control_arena);
    size_t arena_bytes = mr_msg_arena_bytes(&w->limits);
    status = take_memory(arena_bytes, &w->control_arena, err);
    if (status == MR_OK)
        status = take_memory(arena_bytes, &w->tokens_arena, err);
    if (status == MR_OK)
        status = mr_sequences_create(&w->limits, is_tail(w), &w->sequences, err);
    if (status == MR_OK)
        status = create_stage(w, &config, err);
    if (status == MR_OK && grammars)
        status = load_grammars(w, err);
    if (status == MR_OK)
        status = open_links(w, err);
    if (status == MR_OK)
        status = mr_stage_clock_start(&w->clock, trace, err);
    mr_step_sums_clear(&w->sums, mr_clock_now_ns());
    return status == MR_OK ? report_ready(w, err) : status;
}

/* --- Steps ------------------------------------------------------------------------------------------------------- */

/* Prefixes err with the name of the peer that sent the message. */
static mr_status from_peer(const worker *w, int32_t peer, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    return mr_err_prefix(err, "message from %s", mr_channel_peer_name(w->config->channel, peer, name));
}

/* Tokens must come in the order of the steps, and only for steps that this stage has run. */
static mr_status check_tokens(const worker *w, const Millrace__Tokens *tokens, mr_err *err) {
    if (tokens->step > w->step_tokens && tokens->step <= w->step_run)
        return MR_OK;
    return mr_err_set(err, MR_E_PROTOCOL, "tokens of step %llu after step %llu, this stage has run step %llu",
                      (unsigned long long)tokens->step, (unsigned long long)w->step_tokens,
                      (unsigned long long)w->step_run);
}

/* Notes all ids that have come back from the tail. */
static mr_status take_tokens(worker *w, mr_err *err) {
    for (;;) {
        mr_frame frame;
        const uint8_t *payload;
        Millrace__Tokens *tokens;
        mr_status status = mr_inbox_peek(w->tokens_in, &frame, &payload, err);
        if (status != MR_OK || !payload)
            return status;
        status = mr_msg_unpack_tokens(payload, frame.payload_bytes, &w->limits, w->tokens_arena, &tokens, err);
        if (status == MR_OK)
            status = check_tokens(w, tokens, err);
        if (status != MR_OK)
            return from_peer(w, w->tail_peer, err);
        w->step_tokens = tokens->step;
        mr_step_sums_came_back(&w->sums, tokens->step, mr_clock_now_ns());
        for (size_t i = 0; status == MR_OK && i < tokens->n_tokens; i++)
            mr_sequences_note_token(w->sequences, tokens->tokens[i]);
        if (status == MR_OK)
            status = mr_inbox_release(w->tokens_in, err);
        if (status != MR_OK)
            return status;
    }
}

/* The activations of the pending step: [rows, d_model] f32 in the inbox; NULL while they have not come. */
static mr_status peek_activations(worker *w, const float **out_x, mr_err *err) {
    mr_frame frame;
    const uint8_t *payload;
    mr_status status = mr_inbox_peek(w->x_in, &frame, &payload, err);
    if (status != MR_OK || !payload)
        return status;
    uint32_t n_rows = 0;
    for (size_t i = 0; i < w->pending->n_runs; i++)
        n_rows += w->pending->runs[i]->n_rows;
    uint32_t row_bytes = (uint32_t)w->info.d_model * (uint32_t)sizeof(float);
    if (frame.step != w->pending->step || frame.rows != n_rows || frame.type != MR_TYPE_F32 ||
        frame.row_bytes != row_bytes) {
        (void)mr_err_set(err, MR_E_PROTOCOL,
                         "step %llu with %u rows of %u bytes, the plan says step %llu with %u of %u",
                         (unsigned long long)frame.step, frame.rows, frame.row_bytes,
                         (unsigned long long)w->pending->step, n_rows, row_bytes);
        return from_peer(w, w->previous, err);
    }
    *out_x = (const float *)payload;
    return MR_OK;
}

static mr_status send_activations(worker *w, mr_err *err) {
    uint32_t row_bytes = (uint32_t)w->info.d_model * (uint32_t)sizeof(float);
    mr_frame frame = {.step = w->pending->step,
                      .rows = w->n_rows,
                      .type = MR_TYPE_F32,
                      .row_bytes = row_bytes,
                      .payload_bytes = (uint64_t)w->n_rows * row_bytes};
    return mr_outbox_send(w->x_out, &frame, err);
}

/* Looks for what the pending step needs: ids or activations, and a send buffer. *ready: nothing is missing. */
static mr_status gather(worker *w, const float **x, uint8_t **payload, bool *ready, mr_err *err) {
    mr_status status = w->tokens_in ? take_tokens(w, err) : MR_OK;
    bool have_input = false;
    if (status == MR_OK && is_head(w))
        status = mr_step_ids_ready(w->sequences, w->pending, &have_input, err);
    else if (status == MR_OK) {
        status = peek_activations(w, x, err);
        have_input = *x != NULL;
    }
    w->waits_for = have_input ? MR_PHASE_WAIT_OUT : MR_PHASE_WAIT_IN;
    if (status == MR_OK && have_input && w->x_out)
        status = mr_outbox_reserve(w->x_out, payload, err);
    *ready = have_input && (!w->x_out || *payload);
    return status;
}

/* Called between the nodes of a graph, so that messages move while this stage computes. */
static void make_progress(void *channel) {
    mr_channel_progress(channel);
}

/* Notes the time, rows and bytes of the pending step, which has been run and sent. */
static mr_status note_step(worker *w, int64_t start_ns, mr_err *err) {
    int64_t now_ns = mr_clock_now_ns();
    uint32_t n_rows = w->n_rows;
    mr_step_sums_add(&w->sums, n_rows, now_ns - w->clock.ns[MR_PHASE_WAIT_OUT] - start_ns);
    uint64_t bytes = (uint64_t)n_rows * (uint64_t)w->info.d_model * sizeof(float);
    w->in_bytes += w->x_in ? bytes : 0;
    w->out_bytes += w->x_out ? bytes : 0;
    if (w->tokens_in)
        mr_step_sums_sent(&w->sums, w->pending->step, n_rows, now_ns);
    return report_step_sums(w, now_ns, err);
}

/* Runs the pending step if nothing is missing. *did: the step ran. */
static mr_status try_step(worker *w, bool *did, mr_err *err) {
    const float *x = NULL;
    uint8_t *payload = NULL;
    bool ready = false;
    mr_stage_clock_enter(&w->clock, MR_PHASE_WIRE);
    mr_status status = gather(w, &x, &payload, &ready, err);
    if (status != MR_OK || !ready)
        return status;
    int64_t start_ns = mr_clock_now_ns() - w->clock.ns[MR_PHASE_WAIT_OUT]; /* note_step subtracts the time of waiting */
    status = mr_step_fill(w->stage, w->sequences, w->pending, w->max_out_rows, err);
    w->n_rows = (uint32_t)mr_stage_rows(w->stage)->n_rows;
    mr_stage_clock_begin_step(&w->clock, w->pending->step, w->n_rows);
    const mr_stage_step step = {.x_in = x,
                                .x_out = (float *)payload,
                                .progress = w->config->channel->ops->progress ? make_progress : NULL,
                                .progress_ctx = w->config->channel};
    if (status == MR_OK)
        status = mr_stage_run(w->stage, &step, err);
    mr_stage_clock_enter(&w->clock, MR_PHASE_WIRE);
    if (status == MR_OK && w->x_in)
        status = mr_inbox_release(w->x_in, err);
    if (status == MR_OK && w->x_out)
        status = send_activations(w, err);
    if (status == MR_OK && w->tail)
        status = mr_tail_finish_step(w->tail, w->stage, w->sequences, w->pending, err);
    if (status == MR_OK)
        status = mr_inbox_release(w->control, err);
    if (status == MR_OK)
        status = note_step(w, start_ns, err);
    w->step_run = w->pending->step;
    w->pending = NULL;
    *did = true;
    return status;
}

/* Takes the next control message. A step becomes pending, and its message stays in the inbox until the step has run. */
static mr_status take_control(worker *w, bool *did, mr_err *err) {
    mr_frame frame;
    const uint8_t *payload;
    Millrace__Control *message;
    mr_status status = mr_inbox_peek(w->control, &frame, &payload, err);
    if (status != MR_OK || !payload)
        return status;
    mr_stage_clock_enter(&w->clock, MR_PHASE_WIRE);
    status = mr_msg_unpack_control(payload, frame.payload_bytes, &w->limits, w->control_arena, &message, err);
    if (status != MR_OK)
        return status;
    *did = true;
    switch (message->body_case) {
    case MILLRACE__CONTROL__BODY_PLAN:
        status = w->stage ? mr_err_set(err, MR_E_PROTOCOL, "a second plan in epoch %u", w->config->epoch)
                          : take_plan(w, message->plan, err);
        break;
    case MILLRACE__CONTROL__BODY_OPEN:
        status = mr_sequences_open(w->sequences, message->open, err);
        if (status == MR_OK)
            status = mr_stage_set_blocks(w->stage, (int32_t)message->open->slot, 0,
                                         (const int32_t *)message->open->blocks, (int32_t)message->open->n_blocks, err);
        break;
    case MILLRACE__CONTROL__BODY_CLOSE:
        status = mr_sequences_close(w->sequences, message->close, err);
        break;
    case MILLRACE__CONTROL__BODY_STEP:
        w->pending = message->step;
        return MR_OK;
    case MILLRACE__CONTROL__BODY_SHUTDOWN:
        w->stop = true;
        return w->stage ? report_end(w, err) : MR_OK;
    default:
        status = mr_err_set(err, MR_E_PROTOCOL, "a control message of kind %d is not expected here",
                            (int)message->body_case);
    }
    return status == MR_OK ? mr_inbox_release(w->control, err) : status;
}

static mr_status serve(worker *w, mr_err *err) {
    while (!w->stop && !told_to_end(w)) {
        bool did = false;
        mr_status status = w->pending ? try_step(w, &did, err) : take_control(w, &did, err);
        if (status == MR_E_CANCELLED && told_to_end(w))
            return MR_OK;
        if (status == MR_OK)
            status = report_spans(w, false, err);
        if (w->step_run == 0 && !w->pending) /* other ranks may still fetch the file */
            did = mr_file_server_serve(w->config->file_server, 0) || did;
        if (status == MR_OK && !did)
            status = report_step_sums(w, mr_clock_now_ns(), err);
        if (status == MR_OK && !did) {
            mr_stage_clock_enter(&w->clock, w->pending ? w->waits_for : MR_PHASE_NO_WORK);
            status = mr_channel_wait(w->config->channel, mr_step_sums_due_ns(&w->sums), err);
        }
        if (status != MR_OK)
            return status;
    }
    return MR_OK;
}

static void finish(worker *w) {
    mr_tail_destroy(w->tail);
    mr_stage_clock_end(&w->clock);
    mr_inbox_destroy(w->x_in);
    mr_outbox_destroy(w->x_out);
    mr_inbox_destroy(w->tokens_in);
    mr_inbox_destroy(w->control);
    mr_outbox_destroy(w->report);
    mr_stage_destroy(w->stage);
    mr_sequences_destroy(w->sequences);
    mr_grammars_destroy(w->grammars);
    mr_arena_destroy(w->control_arena);
    mr_arena_destroy(w->tokens_arena);
    mr_gguf_close(w->gguf);
}

mr_status mr_worker_run(const mr_worker_config *config, mr_err *err) {
    mr_err own;
    worker w = {.config = config};
    mr_thread_set_denormals_flushed();
    mr_status status = start(&w, &own);
    if (status == MR_OK)
        status = serve(&w, &own);
    if (status == MR_E_CANCELLED && told_to_end(&w))
        status = MR_OK;
    if (status != MR_OK) {
        report_failure(&w, &own);
        mr_err_set(err, status, "%s", own.text);
    }
    finish(&w);
    return status;
}
