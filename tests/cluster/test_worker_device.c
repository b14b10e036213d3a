/* A stage whose layers lie on a device, between a coordinator and a neighbour that the test plays on the same thread.
 * The time is simulated: a step takes the device a millisecond, and messages take their time, too. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/rng.h"
#include "proto/phases.h"
#include "tests/cluster/test_worker_bench.h"
#include "tests/support/test.h"
#include "tests/support/test_clock.h"
#include "tests/support/test_device.h"

static const int64_t NEVER_NS = 3600 * MR_NS_PER_S;

enum {
    HEAD = 0,
    TAIL = 1,
    MAX_EVENTS = 64,
    MAX_STEPS = 40,
    TURN_NS = 20000,     /* what a turn of the stage takes the host */
    STEP_NS = 1000000,   /* what a step takes the device */
    UPDATE_NS = 5000,    /* and a change of block tables */
    INPUT_NS = 950000,   /* from one message of activations to the next */
    MOST_TURNS = 100000, /* more are a stage that hangs */
};

/* What the coordinator sends next. A step brings its activations to the tail, and gets ids for the head. */
typedef enum event_kind { EVENT_OPEN, EVENT_CLOSE, EVENT_STEP, EVENT_COUNT, EVENT_HANG } event_kind;
typedef struct event {
    event_kind kind; /* EVENT_COUNT: from here on the device's calls are counted. EVENT_HANG: none of them ends */
    uint32_t slot, generation;
    uint32_t position, n_rows, block_id; /* a step; it adds the block if its first position is the first of a block */
    int after_steps;                     /* is sent once so many steps have ended */
    int after_begun;                     /* and once so many steps have begun on the device */
} event;

/* What a step has brought. */
typedef struct said {
    uint64_t step;
    int n_tokens;
    uint32_t generation, id;
    float logprob;
    float x[MAX_ROWS * WIDTH]; /* of the head */
} said;

typedef struct scene {
    bench b;
    int32_t self;      /* HEAD or TAIL */
    mr_inbox *to_peer; /* activations of the head, or tokens of the tail for the head */
    test_clock *clock;
    mr_backend *device; /* NULL: the CPU runs the stage */
    bool hangs;         /* the device does */
    event events[MAX_EVENTS];
    int n_events, n_sent;
    int n_steps, n_inputs; /* sent */
    const event *steps[MAX_STEPS];
    int64_t input_ns; /* when the last activations were sent */
    said said[MAX_STEPS];
    int n_said, n_turns;
    uint64_t compute_ns, n_counted; /* of the last report: the phase of computing, and steps */
    test_device_stats stats;        /* at the end of the last step: the end of the stage has work for the device, too */
} scene;

static void open_slot(scene *s, uint32_t slot, uint32_t generation) {
    Millrace__Sampling sampling = MILLRACE__SAMPLING__INIT;
    sampling.repeat_penalty = sampling.top_p = 1.0f;
    sampling.logprobs = true;
    bench_open_sampling(&s->b, slot, generation, &sampling);
}

static void send_step(scene *s, const event *e) {
    const bench_run run = {.slot = e->slot,
                           .generation = e->generation,
                           .first_position = e->position,
                           .n_rows = e->n_rows,
                           .first_block_idx = e->position / 16,
                           .n_blocks = e->position % 16 == 0 ? 1 : 0,
                           .block_id = e->block_id,
                           .id = 1,
                           .without_ids = s->self == HEAD && e->position > 0,
                           .want = MILLRACE__WANT__WANT_TOKEN};
    s->steps[s->n_steps++] = e;
    bench_step(&s->b, (uint64_t)s->n_steps, &run);
}

static void send_input(scene *s) {
    float x[MAX_ROWS * WIDTH];
    uint32_t rows = s->steps[s->n_inputs++]->n_rows;
    for (size_t i = 0; i < rows * WIDTH; i++)
        x[i] = mr_rng_f32(9, (uint64_t)s->n_inputs, i) - 0.5f;
    mr_frame frame = {.step = (uint64_t)s->n_inputs,
                      .rows = rows,
                      .type = MR_TYPE_F32,
                      .row_bytes = WIDTH * sizeof(float),
                      .payload_bytes = (uint64_t)rows * WIDTH * sizeof(float)};
    bench_peer_sends(&s->b, &frame, x);
    s->input_ns = test_clock_now_ns(s->clock);
}

/* Notes activations of the head, and sends it an id for the next step of the sequence. */
static void take_activations(scene *s, const mr_frame *frame, const uint8_t *payload) {
    const event *e = s->steps[s->n_said];
    said *out = &s->said[s->n_said++];
    out->step = frame->step;
    assert_int_equal(frame->payload_bytes, e->n_rows * WIDTH * sizeof(float));
    memcpy(out->x, payload, (size_t)frame->payload_bytes);
    bench_peer_tokens(&s->b, frame->step, e->slot, e->position + e->n_rows);
}

static void take_tokens(scene *s) {
    const Millrace__Tokens *tokens = bench_tokens(&s->b);
    said *out = &s->said[s->n_said++];
    *out = (said){.step = tokens->step, .n_tokens = (int)tokens->n_tokens};
    if (tokens->n_tokens > 0) {
        out->generation = tokens->tokens[0]->generation;
        out->id = tokens->tokens[0]->id;
        out->logprob = tokens->tokens[0]->logprob;
    }
}

static void take_reports(scene *s) {
    const Millrace__Report *report;
    while ((report = bench_report(&s->b)))
        if (report->body_case == MILLRACE__REPORT__BODY_SECONDS) {
            s->compute_ns = report->seconds->ns[MR_PHASE_COMPUTE];
            s->n_counted = report->seconds->steps;
        }
}

/* Takes the messages that have come, one of ids or activations. */
static void receive(scene *s) {
    mr_frame frame;
    const uint8_t *payload;
    mr_err err;
    expect_ok(mr_inbox_peek(s->to_peer, &frame, &payload, &err), &err);
    if (payload && s->self == HEAD)
        take_activations(s, &frame, payload);
    if (payload)
        expect_ok(mr_inbox_release(s->to_peer, &err), &err);
    take_reports(s);
    expect_ok(mr_inbox_peek(s->b.tokens, &frame, &payload, &err), &err);
    if (payload)
        take_tokens(s);
}

static int steps_begun(const scene *s) {
    return s->device ? test_device_get_stats(s->device).n_submits : 0;
}

static void send_event(scene *s, const event *e) {
    if (e->kind == EVENT_OPEN)
        open_slot(s, e->slot, e->generation);
    else if (e->kind == EVENT_CLOSE)
        bench_close(&s->b, e->slot, e->generation);
    else if (e->kind == EVENT_STEP)
        send_step(s, e);
    else if (e->kind == EVENT_HANG)
        s->hangs = true;
    else if (s->device)
        test_device_reset(s->device, 0);
}

/* One turn of coordinator and neighbour. */
static bool look(void *ctx) {
    scene *s = ctx;
    test_clock_advance(s->clock, TURN_NS);
    if (s->hangs)
        mr_clock_freeze(mr_clock_now_ns() + MR_NS_PER_S);
    if (++s->n_turns > MOST_TURNS)
        fail_msg("the stage hangs: %d of %d steps have ended", s->n_said, s->n_steps);
    receive(s);
    const event *e = &s->events[s->n_sent];
    if (s->n_sent < s->n_events && s->n_said >= e->after_steps && (!s->device || steps_begun(s) >= e->after_begun) &&
        s->n_steps < s->n_said + RING_SLOTS) {
        send_event(s, e);
        s->n_sent++;
    }
    if (s->self == TAIL && s->n_inputs < s->n_steps && test_clock_now_ns(s->clock) >= s->input_ns + INPUT_NS)
        send_input(s);
    if (s->n_sent < s->n_events || s->n_said < s->n_steps || s->b.told_to_end)
        return false;
    if (s->device)
        s->stats = test_device_get_stats(s->device);
    bench_shutdown(&s->b);
    return false;
}

static int64_t step_ns(void *ctx, const mr_program_desc *program, const mr_run *run) {
    const scene *s = ctx;
    (void)run;
    return program->nodes[0].op == MR_OP_TABLE_WRITE ? UPDATE_NS : s->hangs ? NEVER_NS : STEP_NS;
}

static void wants_devices(Millrace__Plan *plan) {
    plan->fast_numerics = true;
}

/* Plays the events to a stage that computes on a device or on the CPU. */
static void play(scene *s, bool on_device) {
    const test_device_options options = {.ops = TEST_DEVICE_ALL_OPS,
                                         .costs = {.call_ns = 2000, .byte_ns = 0.1, .program_ns = step_ns, .ctx = s},
                                         .clock = s->clock};
    mr_devices devices = {0};
    mr_err err;
    if (on_device) {
        expect_ok(test_device_create(&options, &s->device, &err), &err);
        devices.list = (mr_backends){.at = {s->device}, .n = 1, .whole_layers = {N_LAYERS}};
    }
    bench_connect(&s->b, s->self);
    bench_peer_opens(&s->b, s->self == HEAD ? MR_LINK_TOKENS : MR_LINK_ACTIVATIONS);
    expect_ok(mr_inbox_create(s->b.peer, s->self, s->self == HEAD ? MR_LINK_ACTIVATIONS : MR_LINK_TOKENS, EPOCH,
                              RING_SLOTS, MR_MAX_TOKENS_BYTES, &s->to_peer, &err),
              &err);
    bench_plan(&s->b, 2, wants_devices);
    bench_work_here(&s->b, on_device ? &devices : NULL, look, s);
    if (s->hangs)
        return;
    assert_int_equal(s->b.status, MR_OK);
    take_reports(s);
    assert_int_equal(s->n_counted, s->n_steps);
}

static void scene_init(scene *s, int32_t self) {
    *s = (scene){.self = self, .clock = test_clock_create(1000)};
    assert_non_null(s->clock);
}

static void scene_deinit(scene *s) {
    mr_inbox_destroy(s->to_peer);
    bench_end(&s->b);
    mr_backend_destroy(s->device);
    test_clock_destroy(s->clock);
}

static void add(scene *s, event e) {
    assert_true(s->n_events < MAX_EVENTS);
    s->events[s->n_events++] = e;
}

static void expect_same(const scene *got, const scene *want, int from) {
    assert_int_equal(got->n_said, want->n_said);
    for (int i = from; i < want->n_said; i++) {
        assert_int_equal(got->said[i].step, want->said[i].step);
        assert_int_equal(got->said[i].n_tokens, want->said[i].n_tokens);
        assert_int_equal(got->said[i].id, want->said[i].id);
        assert_memory_equal(&got->said[i].logprob, &want->said[i].logprob, sizeof(float));
        assert_memory_equal(got->said[i].x, want->said[i].x, sizeof want->said[i].x);
    }
}

/* Two sequences decode in turn. The events of both plays are the same. */
static void add_decoding(scene *s, int n_steps) {
    for (uint32_t slot = 0; slot < 2; slot++) {
        add(s, (event){.kind = EVENT_OPEN, .slot = slot, .generation = 1});
        add(s, (event){.kind = EVENT_STEP, .slot = slot, .generation = 1, .n_rows = 3, .block_id = slot});
    }
    add(s, (event){.kind = EVENT_COUNT, .after_steps = 2});
    for (int i = 0; i < n_steps; i++)
        add(s, (event){.kind = EVENT_STEP,
                       .slot = (uint32_t)i % 2,
                       .generation = 1,
                       .position = 3 + (uint32_t)i / 2,
                       .n_rows = 1,
                       .block_id = 2 + (uint32_t)i % 2});
}

/* Messages come in time, but only just: a stage that sends results, takes messages and starts the next step while the
 * device is idle would leave a gap after each step. */
static void expect_no_gap(int32_t self) {
    enum { STEPS = 32, UPDATES = 2 }; /* both sequences reach their second block */
    scene cpu, s;
    scene_init(&cpu, self);
    scene_init(&s, self);
    add_decoding(&cpu, STEPS);
    add_decoding(&s, STEPS);
    play(&cpu, false);
    play(&s, true);
    expect_same(&s, &cpu, 0);
    int n_inputs = self == HEAD ? 1 : 2; /* of a step: the record, and rows of the stage before */
    assert_int_equal(s.stats.n_sets, n_inputs * STEPS + UPDATES);
    assert_int_equal(s.stats.n_submits, STEPS + UPDATES);
    assert_int_equal(s.stats.n_gets, STEPS); /* the rows for the next stage, or the logits */
    assert_int_equal(s.stats.n_gaps, 0);
    assert_int_equal(s.stats.n_not_pinned, 0);
    /* The stage says how long the device worked by its own clock. The test itself takes less. */
    assert_in_range(s.compute_ns, (STEPS + 2) * (uint64_t)STEP_NS, (STEPS + 2) * (uint64_t)STEP_NS * 102 / 100);
    scene_deinit(&s);
    scene_deinit(&cpu);
}

static void test_a_head_without_a_gap(void **state) {
    (void)state;
    expect_no_gap(HEAD);
}

static void test_a_tail_without_a_gap(void **state) {
    (void)state;
    expect_no_gap(TAIL);
}

/* The first sequence is closed, and another one is opened in its slot with its KV block, while the device works on a
 * row of the first one. The tail samples nothing for this row, and the other sequence gets its bits. */
static void test_a_slot_changes_hands_during_a_step(void **state) {
    (void)state;
    scene cpu, s, *both[] = {&cpu, &s};
    for (int i = 0; i < 2; i++) {
        scene_init(both[i], TAIL);
        add(both[i], (event){.kind = EVENT_OPEN, .slot = 0, .generation = 1});
        add(both[i], (event){.kind = EVENT_STEP, .slot = 0, .generation = 1, .n_rows = 3, .block_id = 2});
        add(both[i],
            (event){.kind = EVENT_STEP, .slot = 0, .generation = 1, .position = 3, .n_rows = 1, .after_steps = 1});
        add(both[i], (event){.kind = EVENT_CLOSE, .slot = 0, .generation = 1, .after_steps = 1, .after_begun = 2});
        add(both[i], (event){.kind = EVENT_OPEN, .slot = 0, .generation = 2});
        add(both[i], (event){.kind = EVENT_STEP, .slot = 0, .generation = 2, .n_rows = 3, .block_id = 2});
        play(both[i], i == 1);
    }
    assert_int_equal(cpu.said[1].n_tokens, 1);
    assert_int_equal(s.said[1].n_tokens, 0);
    assert_int_equal(s.said[2].generation, 2);
    expect_same(&s, &cpu, 2);
    scene_deinit(&s);
    scene_deinit(&cpu);
}

/* A device that does not answer fails the stage, so that its layers can go elsewhere. */
static void test_a_device_that_hangs(void **state) {
    (void)state;
    scene s;
    scene_init(&s, TAIL);
    add(&s, (event){.kind = EVENT_OPEN, .slot = 0, .generation = 1});
    add(&s, (event){.kind = EVENT_HANG});
    add(&s, (event){.kind = EVENT_STEP, .slot = 0, .generation = 1, .n_rows = 3, .block_id = 2});
    play(&s, true);
    mr_clock_freeze(-1);
    assert_int_equal(s.b.status, MR_E_DEVICE);
    expect_says(s.b.err.text, "the device has not ended step 1 of 3 rows in 60 s");
    assert_true(s.n_turns < 200);
    scene_deinit(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_head_without_a_gap),
        cmocka_unit_test(test_a_tail_without_a_gap),
        cmocka_unit_test(test_a_slot_changes_hands_during_a_step),
        cmocka_unit_test(test_a_device_that_hangs),
    };
    bench_model_create();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_model_remove();
    return failed;
}
