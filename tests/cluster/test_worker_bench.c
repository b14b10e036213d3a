// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/test_worker_bench.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/clock.h"
#include "worker/lobby/lobby.h"
#include "worker/worker.h"

enum { TIMEOUT_S = 30, ARENA_BYTES = 256 << 10 };

static char model_path[64];
static const mr_msg_limits LIMITS = {.n_stages = 2,
                                     .max_rows = MAX_ROWS,
                                     .max_sequences = 2,
                                     .max_context = MAX_CONTEXT,
                                     .n_kv_blocks = N_KV_BLOCKS,
                                     .n_vocab = VOCAB};

void bench_model_create(void) {
    tiny_desc desc = tiny_default("llama", MR_TYPE_Q8_0);
    gguf_writer *w = tiny_model_write(&desc);
    strcpy(model_path, "/tmp/millrace-test-XXXXXX");
    int fd = mkstemp(model_path);
    if (fd < 0 || !gguf_writer_save(w, model_path))
        abort();
    close(fd);
    gguf_writer_destroy(w);
}

void bench_model_remove(void) {
    unlink(model_path);
}

const mr_weights_root *bench_root;
bool bench_must_verify;

static void run_stage(bench *b, bool (*told_to_end)(void *ctx)) {
    mr_worker_config config = {.model_path = model_path,
                               .channel = b->worker,
                               .coordinator = COORDINATOR,
                               .epoch = EPOCH,
                               .backend = b->backend,
                               .weights_root = bench_root,
                               .must_verify = bench_must_verify,
                               .told_to_end = told_to_end};
    b->status = mr_worker_run(&config, &b->err);
    mr_channel_destroy(b->worker);
}

static void run_worker(void *ctx) {
    run_stage(ctx, NULL);
}

static bool is_loading; /* of the worker's thread, as the functions that use it */

static bool told_while_loading(void *ctx) {
    (void)ctx;
    return is_loading;
}

/* Between two tensors: as much later as makes a report of the progress due. */
static void load_slowly(mr_channel *channel) {
    (void)channel;
    is_loading = true;
    mr_clock_freeze(mr_clock_now_ns() + MR_NS_PER_S);
}

static void run_unheard(void *ctx) {
    bench *b = ctx;
    mr_channel_ops ops = *b->worker->ops;
    ops.progress = load_slowly;
    b->worker->ops = &ops;
    is_loading = false;
    run_stage(b, told_while_loading);
    mr_clock_freeze(-1);
}

static void run_lobby(void *ctx) {
    static const mr_secret no_secret = {.is_set = false}; /* what ranks have without a launch secret */
    bench *b = ctx;
    mr_lobby_config config = {.model_path = model_path,
                              .channel = b->worker,
                              .coordinator = COORDINATOR,
                              .backend = b->backend,
                              .n_threads = 1};
    bool abandoned;
    b->worker->secret = &no_secret;
    b->status = mr_lobby_run(&config, &abandoned, &b->err);
    mr_channel_destroy(b->worker);
}

static void connect_all(bench *b, int32_t self, mr_thread_fn run) {
    mr_err err;
    *b = (bench){.self = self};
    expect_ok(mr_local_hub_create(3, 512, &b->hub, &err), &err);
    expect_ok(mr_local_channel_open(b->hub, COORDINATOR, &b->coordinator, &err), &err);
    expect_ok(mr_local_channel_open(b->hub, self, &b->worker, &err), &err);
    expect_ok(mr_local_channel_open(b->hub, 1 - self, &b->peer, &err), &err);
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &b->backend, &err), &err);
    expect_ok(mr_outbox_create(b->coordinator, self, MR_LINK_CONTROL, EPOCH, MR_CONTROL_SLOTS, MR_MAX_CONTROL_BYTES,
                               &b->control, &err),
              &err);
    if (run != run_unheard)
        expect_ok(mr_inbox_create(b->coordinator, self, MR_LINK_REPORT, EPOCH, MR_REPORT_SLOTS, MR_MAX_REPORT_BYTES,
                                  &b->report, &err),
                  &err);
    expect_ok(
        mr_inbox_create(b->coordinator, self, MR_LINK_TOKENS, EPOCH, RING_SLOTS, MR_MAX_TOKENS_BYTES, &b->tokens, &err),
        &err);
    expect_ok(mr_arena_create(ARENA_BYTES, ARENA_BYTES, &b->arena, &err), &err);
    if (run == run_lobby)
        expect_ok(mr_outbox_create(b->coordinator, self, MR_LINK_CONTROL, 0, MR_LOBBY_SLOTS, MR_MAX_LOBBY_BYTES,
                                   &b->lobby, &err),
                  &err);
}

static void start(bench *b, int32_t self, mr_thread_fn run) {
    mr_err err;
    connect_all(b, self, run);
    expect_ok(mr_thread_create("worker", 0, run, b, &b->thread, &err), &err);
}

void bench_connect(bench *b, int32_t self) {
    connect_all(b, self, NULL);
}

static bool (*look_here)(void *ctx); /* of bench_work_here */
static void *look_ctx;

static mr_status wait_here(mr_channel *channel, int64_t deadline_ns, mr_err *err) {
    (void)channel;
    (void)deadline_ns;
    (void)err;
    (void)look_here(look_ctx);
    return MR_OK;
}

void bench_work_here(bench *b, const mr_devices *devices, bool (*look)(void *ctx), void *ctx) {
    mr_worker_config config = {.model_path = model_path,
                               .channel = b->worker,
                               .coordinator = COORDINATOR,
                               .epoch = EPOCH,
                               .backend = b->backend,
                               .devices = devices,
                               .told_to_end = look,
                               .told_to_end_ctx = ctx};
    mr_channel_ops ops = *b->worker->ops;
    const mr_channel_ops *own = b->worker->ops;
    ops.wait = wait_here;
    b->worker->ops = &ops;
    look_here = look;
    look_ctx = ctx;
    b->status = mr_worker_run(&config, &b->err);
    b->worker->ops = own;
    mr_channel_destroy(b->worker);
}

void bench_start(bench *b, int32_t self) {
    start(b, self, run_worker);
}

void bench_start_unheard(bench *b, int32_t self) {
    start(b, self, run_unheard);
}

void bench_start_in_lobby(bench *b, int32_t self) {
    start(b, self, run_lobby);
}

void bench_coordinator_leaves(bench *b) {
    mr_outbox_destroy(b->control);
    mr_outbox_destroy(b->lobby);
    mr_inbox_destroy(b->report);
    mr_inbox_destroy(b->tokens);
    mr_channel_destroy(b->coordinator);
    b->control = b->lobby = NULL;
    b->report = b->tokens = NULL;
    b->coordinator = NULL;
}

void bench_peer_leaves(bench *b) {
    mr_outbox_destroy(b->to_worker);
    mr_channel_destroy(b->peer);
    b->to_worker = NULL;
    b->peer = NULL;
}

void bench_end(bench *b) {
    if (b->coordinator && !b->told_to_end)
        bench_coordinator_leaves(b);
    alarm(TIMEOUT_S); /* the signal ends the process, so a hang is a failure */
    if (b->thread)
        mr_thread_join(b->thread);
    alarm(0);
    if (b->coordinator)
        bench_coordinator_leaves(b);
    if (b->peer)
        bench_peer_leaves(b);
    mr_backend_destroy(b->backend);
    mr_local_hub_destroy(b->hub);
    mr_arena_destroy(b->arena);
}

/* --- The coordinator's messages ---------------------------------------------------------------------------------- */

/* Sends a message, or a frame with a payload when message is NULL. */
static void send(mr_outbox *out, const ProtobufCMessage *message, const mr_frame *frame, const void *payload) {
    mr_err err;
    mr_frame f = frame ? *frame : (mr_frame){0};
    uint8_t *buffer = NULL;
    size_t n = 0;
    expect_ok(mr_outbox_reserve(out, &buffer, &err), &err);
    assert_non_null(buffer);
    if (message) {
        expect_ok(mr_msg_pack(message, buffer, MR_MAX_REPORT_BYTES, &n, &err), &err);
        f.payload_bytes = n;
    } else {
        memcpy(buffer, payload, f.payload_bytes);
    }
    expect_ok(mr_outbox_send(out, &f, &err), &err);
}

void bench_control(bench *b, const Millrace__Control *message) {
    send(b->control, &message->base, NULL, NULL);
}

static void send_shutdown(bench *b, mr_outbox *out) {
    Millrace__Shutdown shutdown = MILLRACE__SHUTDOWN__INIT;
    Millrace__Control control = MILLRACE__CONTROL__INIT;
    control.body_case = MILLRACE__CONTROL__BODY_SHUTDOWN;
    control.shutdown = &shutdown;
    send(out, &control.base, NULL, NULL);
    b->told_to_end = true;
}

void bench_shutdown(bench *b) {
    send_shutdown(b, b->control);
}

void bench_lobby_shutdown(bench *b) {
    send_shutdown(b, b->lobby);
}

void bench_lobby_start(bench *b) {
    Millrace__Start start_it = MILLRACE__START__INIT;
    Millrace__Control control = MILLRACE__CONTROL__INIT;
    start_it.epoch = EPOCH;
    control.body_case = MILLRACE__CONTROL__BODY_START;
    control.start = &start_it;
    send(b->lobby, &control.base, NULL, NULL);
}

void bench_plan(bench *b, int32_t n_stages, void (*edit)(Millrace__Plan *plan)) {
    Millrace__StageRange ranges[2], *ptrs[2] = {&ranges[0], &ranges[1]};
    Millrace__Plan plan = MILLRACE__PLAN__INIT;
    Millrace__Control control = MILLRACE__CONTROL__INIT;
    for (uint32_t i = 0; i < 2; i++) {
        millrace__stage_range__init(&ranges[i]);
        ranges[i].rank = n_stages == 1 ? (uint32_t)b->self : i;
        ranges[i].first_layer = i;
        ranges[i].last_layer = n_stages == 1 ? N_LAYERS : i + 1;
    }
    plan.epoch = EPOCH;
    plan.n_stages = (size_t)n_stages;
    plan.stages = ptrs;
    plan.n_kv_blocks = N_KV_BLOCKS;
    plan.kv_type = MR_TYPE_F16;
    plan.max_rows = MAX_ROWS;
    plan.max_out_rows = MAX_OUT_ROWS;
    plan.max_sequences = 2;
    plan.max_context = MAX_CONTEXT;
    plan.ring_slots = RING_SLOTS;
    if (edit)
        edit(&plan);
    control.body_case = MILLRACE__CONTROL__BODY_PLAN;
    control.plan = &plan;
    bench_control(b, &control);
}

void bench_open_sampling(bench *b, uint32_t slot, uint32_t generation, Millrace__Sampling *sampling) {
    uint32_t ids[] = {1, 2, 3};
    Millrace__OpenSequence open = MILLRACE__OPEN_SEQUENCE__INIT;
    Millrace__Control control = MILLRACE__CONTROL__INIT;
    open.slot = slot;
    open.generation = generation;
    open.ids = ids;
    open.n_ids = 3;
    open.sampling = sampling;
    prefix_log_open(&b->log, &open);
    control.body_case = MILLRACE__CONTROL__BODY_OPEN;
    control.open = &open;
    bench_control(b, &control);
}

void bench_open(bench *b, uint32_t slot, uint32_t generation, bool samples) {
    Millrace__Sampling sampling = MILLRACE__SAMPLING__INIT;
    sampling.repeat_penalty = sampling.top_p = 1.0f;
    bench_open_sampling(b, slot, generation, samples ? &sampling : NULL);
}

void bench_close(bench *b, uint32_t slot, uint32_t generation) {
    Millrace__CloseSequence close_it = MILLRACE__CLOSE_SEQUENCE__INIT;
    Millrace__Control control = MILLRACE__CONTROL__INIT;
    close_it.slot = slot;
    close_it.generation = generation;
    control.body_case = MILLRACE__CONTROL__BODY_CLOSE;
    control.close = &close_it;
    bench_control(b, &control);
}

void bench_step(bench *b, uint64_t step, const bench_run *r) {
    uint32_t ids[64], blocks[64];
    Millrace__Run run = MILLRACE__RUN__INIT, *ptr = &run;
    Millrace__StepPlan plan = MILLRACE__STEP_PLAN__INIT;
    Millrace__Control control = MILLRACE__CONTROL__INIT;
    assert_true(r->n_rows <= 64 && r->n_blocks <= 64);
    for (uint32_t i = 0; i < 64; i++) {
        ids[i] = r->id;
        blocks[i] = r->block_id + i;
    }
    run.slot = r->slot;
    run.generation = r->generation;
    run.first_position = r->first_position;
    run.n_rows = r->n_rows;
    run.ids = ids;
    run.n_ids = r->without_ids ? 0 : r->n_rows;
    run.first_block_idx = r->first_block_idx;
    run.blocks = blocks;
    run.n_blocks = r->n_blocks;
    run.want = r->want;
    prefix_log_run(&b->log, &run, r->sampled_id);
    plan.step = step;
    plan.n_runs = 1;
    plan.runs = &ptr;
    control.body_case = MILLRACE__CONTROL__BODY_STEP;
    control.step = &plan;
    bench_control(b, &control);
}

void bench_raw(bench *b, uint32_t epoch, const uint8_t *bytes, size_t n) {
    mr_channel_request request = 0;
    mr_completion c = {0};
    mr_err err;
    expect_ok(
        mr_channel_post_send(b->coordinator, b->self, mr_link_tag(MR_LINK_CONTROL, epoch), bytes, n, &request, &err),
        &err);
    for (;;) {
        expect_ok(mr_channel_test(b->coordinator, request, &c, &err), &err);
        if (c.done)
            return;
        expect_ok(mr_channel_wait(b->coordinator, mr_clock_now_ns() + MR_NS_PER_S, &err), &err);
    }
}

/* --- The peer's -------------------------------------------------------------------------------------------------- */

void bench_peer_opens(bench *b, mr_link_kind kind) {
    mr_err err;
    expect_ok(mr_outbox_create(b->peer, b->self, kind, EPOCH, RING_SLOTS, MR_MAX_TOKENS_BYTES, &b->to_worker, &err),
              &err);
}

void bench_peer_sends(bench *b, const mr_frame *frame, const void *payload) {
    send(b->to_worker, NULL, frame, payload);
}

void bench_peer_tokens(bench *b, uint64_t step, uint32_t slot, uint32_t position) {
    Millrace__Token token = MILLRACE__TOKEN__INIT, *ptr = &token;
    Millrace__Tokens tokens = MILLRACE__TOKENS__INIT;
    token.slot = slot;
    token.generation = 1;
    token.position = position;
    tokens.step = step;
    tokens.n_tokens = 1;
    tokens.tokens = &ptr;
    send(b->to_worker, &tokens.base, NULL, NULL);
}

/* --- What the worker says ---------------------------------------------------------------------------------------- */

/* The next payload of in; fails when none comes. */
static const uint8_t *receive(bench *b, mr_inbox *in, mr_frame *frame) {
    const uint8_t *payload = NULL;
    mr_err err;
    int64_t deadline = mr_clock_now_ns() + TIMEOUT_S * MR_NS_PER_S;
    for (;;) {
        expect_ok(mr_inbox_peek(in, frame, &payload, &err), &err);
        if (payload)
            return payload;
        if (mr_clock_now_ns() >= deadline)
            fail_msg("the worker says nothing");
        expect_ok(mr_channel_wait(b->coordinator, deadline, &err), &err);
    }
}

const Millrace__Report *bench_report(bench *b) {
    mr_frame frame;
    const uint8_t *payload;
    Millrace__Report *report;
    mr_err err;
    if (mr_inbox_peek(b->report, &frame, &payload, &err) != MR_OK || !payload)
        return NULL;
    expect_ok(mr_msg_unpack_report(payload, frame.payload_bytes, &LIMITS, b->arena, &report, &err), &err);
    expect_ok(mr_inbox_release(b->report, &err), &err);
    return report;
}

/* The next report that is ready or failure. */
static const Millrace__Report *next_report(bench *b) {
    for (;;) {
        mr_frame frame;
        Millrace__Report *report;
        mr_err err;
        const uint8_t *payload = receive(b, b->report, &frame);
        expect_ok(mr_msg_unpack_report(payload, frame.payload_bytes, &LIMITS, b->arena, &report, &err), &err);
        expect_ok(mr_inbox_release(b->report, &err), &err);
        if (report->body_case == MILLRACE__REPORT__BODY_READY || report->body_case == MILLRACE__REPORT__BODY_FAILURE)
            return report;
    }
}

void bench_ready(bench *b) {
    const Millrace__Report *report = next_report(b);
    if (report->body_case == MILLRACE__REPORT__BODY_FAILURE)
        fail_msg("%s", report->failure->text);
    assert_int_equal(report->body_case, MILLRACE__REPORT__BODY_READY);
}

const Millrace__Tokens *bench_tokens(bench *b) {
    mr_frame frame;
    Millrace__Tokens *tokens;
    mr_err err;
    const uint8_t *payload = receive(b, b->tokens, &frame);
    expect_ok(mr_msg_unpack_tokens(payload, frame.payload_bytes, &LIMITS, b->arena, &tokens, &err), &err);
    expect_ok(mr_inbox_release(b->tokens, &err), &err);
    return tokens;
}

static void expect_text(mr_status status, const char *got, mr_status want, const char *text) {
    if (status != want || !strstr(got, text))
        fail_msg("%s: \"%s\"; expected %s: \"%s\"", mr_status_name(status), got, mr_status_name(want), text);
}

void bench_expect(bench *b, mr_status want, const char *text) {
    const Millrace__Report *report = next_report(b);
    while (report->body_case == MILLRACE__REPORT__BODY_READY)
        report = next_report(b);
    assert_int_equal(report->body_case, MILLRACE__REPORT__BODY_FAILURE);
    expect_text((mr_status)report->failure->status, report->failure->text, want, text);
    bench_end(b);
    expect_text(b->status, b->err.text, want, text);
    assert_int_equal(b->err.status, want);
}
