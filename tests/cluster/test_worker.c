/* A stage between a coordinator and a neighbour that send invalid messages or disconnect. The stage reports what is
 * wrong and which peer is the cause, returns the same error, and leaks nothing. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/clock.h"
#include "tests/cluster/test_worker_bench.h"
#include "tests/support/test.h"

/* A run that is right after bench_open(b, 0, 1, true): the three ids of the prompt. */
static bench_run prompt_run(void) {
    return (bench_run){.generation = 1, .n_rows = 3, .n_blocks = 1, .id = 1, .want = MILLRACE__WANT__WANT_TOKEN};
}

/* A worker that holds all layers, with slot 0 open in generation 1. */
static void start_alone(bench *b) {
    bench_start(b, 0);
    bench_plan(b, 1, NULL);
    bench_ready(b);
    bench_open(b, 0, 1, true);
}

/* --- Plans ------------------------------------------------------------------------------------------------------- */

static void too_many_layers(Millrace__Plan *plan) {
    plan->stages[1]->last_layer = 3;
}
static void too_few_layers(Millrace__Plan *plan) {
    plan->n_stages = 1;
}
static void a_gap(Millrace__Plan *plan) {
    plan->stages[1]->first_layer = 5;
    plan->stages[1]->last_layer = 6;
}
static void twice(Millrace__Plan *plan) {
    plan->stages[1]->rank = 0;
}
static void without_me(Millrace__Plan *plan) {
    plan->stages[0]->rank = 1;
}
static void the_coordinator(Millrace__Plan *plan) {
    plan->stages[0]->rank = COORDINATOR;
}
static void nobody(Millrace__Plan *plan) {
    plan->stages[1]->rank = 7;
}
static void many_rows(Millrace__Plan *plan) {
    plan->max_rows = 4097;
}
static void many_out_rows(Millrace__Plan *plan) {
    plan->max_out_rows = MAX_ROWS + 1;
}
static void many_blocks(Millrace__Plan *plan) {
    plan->n_kv_blocks = MR_MAX_KV_BLOCKS + 1;
}
static void odd_kv_type(Millrace__Plan *plan) {
    plan->kv_type = 9;
}
static void on_a_device(Millrace__Plan *plan) {
    plan->stages[0]->device_layers = 1;
}
static void too_many_on_a_device(Millrace__Plan *plan) {
    plan->stages[1]->device_layers = 2;
}

static void test_plans(void **state) {
    (void)state;
    const struct {
        void (*edit)(Millrace__Plan *);
        const char *text;
    } cases[] = {
        {too_many_layers, "the plan cuts 3 layers, the model has 2"},
        {too_few_layers, "the plan cuts 1 layers, the model has 2"},
        {a_gap, "stage 1: first_layer is 5"},
        {twice, "rank 0 twice"},
        {without_me, "the plan gives rank 0 no layers"},
        {the_coordinator, "the plan names rank 2 of 2"},
        {nobody, "the plan names rank 7 of 2"},
        {many_rows, "max_rows is 4097"},
        {many_out_rows, "max_out_rows is 9"},
        {many_blocks, "n_kv_blocks is"},
        {odd_kv_type, "kv_type is 9"},
        {on_a_device, "the plan puts 1 layers on a device, and this rank has none for layers"},
        {too_many_on_a_device, "stage 1: device_layers is 2, allowed is 0 to 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench b;
        bench_start(&b, 0);
        bench_plan(&b, 2, cases[i].edit);
        bench_expect(&b, MR_E_PROTOCOL, cases[i].text);
    }
}

static void names_weights(Millrace__Plan *plan) {
    static uint8_t root[MR_FILE_HASH_BYTES] = {0xab, 1};
    plan->weights_root = (ProtobufCBinaryData){.len = sizeof root, .data = root};
}

/* A rank that knows its weights takes no plan for others. */
static void test_weights_of_plans(void **state) {
    (void)state;
    static const mr_weights_root same = {{0xab, 1}}, other = {{0xab, 2}};
    const struct {
        const mr_weights_root *own;
        bool must_verify;
        void (*edit)(Millrace__Plan *);
        const char *text; /* NULL: the plan is taken */
    } cases[] = {
        {NULL, false, names_weights, NULL},
        {&same, false, names_weights, NULL},
        {&same, true, names_weights, NULL},
        {&other, false, NULL, NULL},
        {&other, false, names_weights, "the plan is for weights ab010000..., this rank has ab020000..."},
        {&same, true, NULL, "the plan names no weights"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench b;
        bench_root = cases[i].own;
        bench_must_verify = cases[i].must_verify;
        bench_start(&b, 0);
        bench_plan(&b, 1, cases[i].edit);
        if (cases[i].text) {
            bench_expect(&b, MR_E_PROTOCOL, cases[i].text);
            continue;
        }
        bench_ready(&b);
        bench_shutdown(&b);
        bench_end(&b);
        assert_int_equal(b.status, MR_OK);
    }
    bench_root = NULL;
    bench_must_verify = false;
}

static void test_order_of_messages(void **state) {
    (void)state;
    bench b;
    bench_run run = prompt_run();
    bench_start(&b, 0);
    bench_step(&b, 1, &run);
    bench_expect(&b, MR_E_PROTOCOL, "step plan");
    bench_start(&b, 0);
    bench_open(&b, 0, 1, true);
    bench_expect(&b, MR_E_PROTOCOL, "open sequence: slot is 0");
    bench_start(&b, 0);
    bench_close(&b, 0, 1);
    bench_expect(&b, MR_E_PROTOCOL, "close sequence: slot is 0");
    Millrace__ReportUses report_uses = MILLRACE__REPORT_USES__INIT;
    const Millrace__Control ask = mr_msg_control_of(&report_uses.base);
    bench_start(&b, 0);
    bench_control(&b, &ask);
    bench_expect(&b, MR_E_PROTOCOL, "counts of uses are wanted before the plan");
    bench_start(&b, 0);
    bench_plan(&b, 1, NULL);
    bench_plan(&b, 1, NULL);
    bench_expect(&b, MR_E_PROTOCOL, "a second plan");
    start_alone(&b);
    bench_close(&b, 1, 1);
    bench_expect(&b, MR_E_PROTOCOL, "slot 1 is not open in generation 1");
    start_alone(&b);
    bench_close(&b, 0, 2);
    bench_expect(&b, MR_E_PROTOCOL, "slot 0 is not open in generation 2");
}

/* --- Frames ------------------------------------------------------------------------------------------------------ */

/* A sealed frame of the control link with this epoch and payload; returns its length. */
static size_t make_frame(uint8_t *buffer, uint32_t epoch, const void *payload, size_t n) {
    mr_frame frame = {.kind = MR_FRAME_CONTROL, .epoch = epoch, .payload_bytes = n};
    memcpy(buffer + MR_FRAME_BYTES, payload, n);
    mr_frame_seal(&frame, buffer);
    return MR_FRAME_BYTES + n;
}

static void test_malformed_frames(void **state) {
    (void)state;
    uint8_t bytes[128] = {0};
    bench b;
    bench_start(&b, 0);
    bench_raw(&b, EPOCH, bytes, sizeof bytes);
    bench_expect(&b, MR_E_PROTOCOL, "message from endpoint 2: frame");
    bench_start(&b, 0);
    bench_raw(&b, EPOCH, bytes, 0);
    bench_expect(&b, MR_E_PROTOCOL, "message from endpoint 2");
    size_t n = make_frame(bytes, EPOCH, "\x2a\x00", 2);
    bytes[MR_FRAME_BYTES] ^= 1;
    bench_start(&b, 0);
    bench_raw(&b, EPOCH, bytes, n);
    bench_expect(&b, MR_E_PROTOCOL, "checksum");
    n = make_frame(bytes, EPOCH, "\xff\xff\xff", 3);
    bench_start(&b, 0);
    bench_raw(&b, EPOCH, bytes, n);
    bench_expect(&b, MR_E_PROTOCOL, "");
    n = make_frame(bytes, EPOCH, "", 0); /* a message without a body */
    bench_start(&b, 0);
    bench_raw(&b, EPOCH, bytes, n);
    bench_expect(&b, MR_E_PROTOCOL, "body is 0");
}

/* A shutdown of another epoch is none. */
static void test_other_epochs_are_dropped(void **state) {
    (void)state;
    uint8_t bytes[128];
    bench b;
    bench_run run = prompt_run();
    size_t n = make_frame(bytes, EPOCH + 4096, "\x2a\x00", 2); /* another epoch with the same tag */
    bench_start(&b, 0);
    bench_raw(&b, EPOCH, bytes, n);
    bench_plan(&b, 1, NULL);
    bench_ready(&b);
    for (int i = 0; i < MR_CONTROL_SLOTS + 3; i++)
        bench_raw(&b, EPOCH, bytes, n);
    bench_open(&b, 0, 1, true);
    bench_step(&b, 1, &run);
    assert_int_equal(bench_tokens(&b)->step, 1);
    bench_shutdown(&b);
    bench_end(&b);
    assert_int_equal(b.status, MR_OK);
}

/* --- Steps ------------------------------------------------------------------------------------------------------- */

static void test_steps(void **state) {
    (void)state;
    const Millrace__Want logits = MILLRACE__WANT__WANT_ALL_LOGITS;
    const struct {
        bench_run run;
        const char *text;
    } cases[] = {
        {{.slot = 1, .generation = 1, .n_rows = 1, .n_blocks = 1}, "slot 1 is not open in generation 1"},
        {{.slot = 2, .generation = 1, .n_rows = 1, .n_blocks = 1}, "slot is 2, allowed is below 2"},
        {{.slot = 0, .generation = 0, .n_rows = 1, .n_blocks = 1}, "slot 0 is not open in generation 0"},
        {{.generation = 2, .n_rows = 1, .n_blocks = 1, .without_ids = true}, "slot 0 is not open in generation 2"},
        {{.generation = 1, .n_rows = 1, .n_blocks = 1, .block_id = 4}, "block 0 is 4, allowed is below 4"},
        {{.generation = 1, .n_rows = 1, .n_blocks = 3, .block_id = 1}, "the number of blocks is 3"},
        {{.generation = 1, .n_rows = 1, .first_block_idx = 1, .n_blocks = 1}, "entries from 1 on, but only 0"},
        {{.generation = 1, .n_rows = 1, .first_block_idx = 2, .n_blocks = 1}, "first_block_idx + the number of blocks"},
        {{.generation = 1, .n_rows = 1}, "position 0 lies in no KV block: the table has 0"},
        {{.generation = 1, .first_position = 12, .n_rows = 5, .n_blocks = 1}, "position 16 lies in no KV block"},
        {{.generation = 1, .first_position = 30, .n_rows = 3, .n_blocks = 2}, "first_position + n_rows is 33"},
        {{.generation = 1, .first_position = UINT32_MAX, .n_rows = 1, .n_blocks = 2}, "first_position + n_rows is"},
        {{.generation = 1, .n_rows = 1, .n_blocks = 1, .id = VOCAB}, "id 0 is 90, allowed is below 90"},
        {{.generation = 1, .n_rows = 9, .n_blocks = 1}, "n_rows is 9, allowed is 1 to 8"},
        {{.generation = 1, .n_rows = 2, .n_blocks = 1, .without_ids = true}, "the number of ids is 0"},
        {{.generation = 1, .n_rows = 5, .n_blocks = 1, .want = logits}, "logits of 5 rows, the plan allows 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench b;
        start_alone(&b);
        bench_step(&b, 1, &cases[i].run);
        bench_expect(&b, MR_E_PROTOCOL, cases[i].text);
    }
}

/* Steps that are wrong only because of earlier steps. */
static void test_later_steps(void **state) {
    (void)state;
    bench b;
    bench_run run = prompt_run(), next = {.generation = 1, .n_rows = 1, .without_ids = true};
    start_alone(&b);
    bench_step(&b, 1, &run);
    next.first_position = 2; /* the id of position 3 was sampled already */
    bench_step(&b, 2, &next);
    bench_expect(&b, MR_E_PROTOCOL, "slot 0: step 2 wants the id of position 2, which is past");
    start_alone(&b);
    bench_step(&b, 1, &run);
    bench_open(&b, 0, 2, true); /* opens the slot again, without the blocks */
    run.generation = 2;
    run.n_blocks = 0;
    bench_step(&b, 2, &run);
    bench_expect(&b, MR_E_PROTOCOL, "position 2 lies in no KV block: the table has 0");
    start_alone(&b);
    bench_open(&b, 1, 1, false);
    run = prompt_run();
    run.slot = 1;
    bench_step(&b, 1, &run);
    bench_expect(&b, MR_E_PROTOCOL, "slot 1 was opened without sampling parameters");
    start_alone(&b);
    run = prompt_run();
    bench_step(&b, 1, &run);
    b.log.slots[0].sums.ids++; /* the coordinator has other ids */
    next = (bench_run){.generation = 1, .first_position = 3, .n_rows = 1, .id = 5};
    bench_step(&b, 2, &next);
    bench_expect(&b, MR_E_PROTOCOL, "slot 0, generation 1, position 3: the ids before it have sum");
    start_alone(&b);
    bench_close(&b, 0, 1);
    bench_step(&b, 1, &(bench_run){.generation = 1, .n_rows = 1, .n_blocks = 1});
    bench_expect(&b, MR_E_PROTOCOL, "slot 0 is not open in generation 1");
}

/* --- The neighbour ----------------------------------------------------------------------------------------------- */

static void test_activations(void **state) {
    (void)state;
    static const float x[4 * WIDTH];
    const struct {
        mr_frame frame;
        const char *text;
    } cases[] = {
        {{.step = 2, .rows = 3, .row_bytes = WIDTH * 4}, "message from endpoint 0: step 2 with 3 rows"},
        {{.step = 0, .rows = 3, .row_bytes = WIDTH * 4}, "message from endpoint 0: step 0 with 3 rows"},
        {{.step = 1, .rows = 2, .row_bytes = WIDTH * 4},
         "with 2 rows of 256 bytes, the plan says step 1 with 3 of 256"},
        {{.step = 1, .rows = 4, .row_bytes = WIDTH * 4}, "with 4 rows of 256 bytes"},
        {{.step = 1, .rows = 0, .row_bytes = WIDTH * 4}, "with 0 rows of 256 bytes"},
        {{.step = 1, .rows = 3, .row_bytes = WIDTH * 4 - 4}, "with 3 rows of 252 bytes"},
        {{.step = 1, .rows = 3, .row_bytes = WIDTH * 4, .type = MR_TYPE_F16}, "message from endpoint 0: step 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench b;
        bench_run run = prompt_run();
        mr_frame frame = cases[i].frame;
        bench_start(&b, 1);
        bench_peer_opens(&b, MR_LINK_ACTIVATIONS);
        bench_plan(&b, 2, NULL);
        bench_ready(&b);
        bench_open(&b, 0, 1, true);
        bench_step(&b, 1, &run);
        frame.payload_bytes = (uint64_t)frame.rows * frame.row_bytes;
        bench_peer_sends(&b, &frame, x);
        bench_expect(&b, MR_E_PROTOCOL, cases[i].text);
    }
}

/* The head, with the prompt's step sent on, and the next one waiting for its id. */
static void start_head(bench *b, mr_inbox **out_x) {
    bench_run run = prompt_run(), next = {.generation = 1, .first_position = 3, .n_rows = 1, .without_ids = true};
    mr_err err;
    bench_start(b, 0);
    bench_peer_opens(b, MR_LINK_TOKENS);
    expect_ok(mr_inbox_create(b->peer, 0, MR_LINK_ACTIVATIONS, EPOCH, RING_SLOTS, MAX_ROWS * WIDTH * 4, out_x, &err),
              &err);
    bench_plan(b, 2, NULL);
    bench_ready(b);
    bench_open(b, 0, 1, true);
    bench_step(b, 1, &run);
    bench_step(b, 2, &next);
    for (const uint8_t *payload = NULL; !payload;) {
        mr_frame frame;
        expect_ok(mr_inbox_peek(*out_x, &frame, &payload, &err), &err);
        if (!payload)
            expect_ok(mr_channel_wait(b->peer, MR_NEVER, &err), &err);
        else
            assert_int_equal(frame.rows, 3);
    }
}

static void test_tokens_for_the_head(void **state) {
    (void)state;
    const struct {
        uint64_t step;
        uint32_t slot, position;
        const char *text;
    } cases[] = {
        {1, 0, 4, "slot 0: step 2 wants the id of position 3, which is past"},
        {1, 2, 3, "slot is 2, allowed is below 2"},
        {1, 0, 33, "position is 33"},
        {2, 0, 3, "tokens of step 2"},
        {0, 0, 3, "tokens of step 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench b;
        mr_inbox *x;
        start_head(&b, &x);
        bench_peer_tokens(&b, cases[i].step, cases[i].slot, cases[i].position);
        mr_inbox_destroy(x);
        bench_expect(&b, MR_E_PROTOCOL, cases[i].text);
    }
}

/* --- Ends -------------------------------------------------------------------------------------------------------- */

/* The ids that a stage alone samples after the prompt, step by step. */
static void learn_ids(int32_t *out_ids, uint32_t n) {
    bench b;
    bench_run run = prompt_run();
    start_alone(&b);
    for (uint32_t i = 0; i < n; i++) {
        bench_step(&b, 1 + i, &run);
        out_ids[i] = (int32_t)bench_tokens(&b)->tokens[0]->id;
        run = (bench_run){.generation = 1, .n_rows = 1, .first_position = 3 + i, .without_ids = true};
        run.sampled_id = out_ids[i];
        run.want = MILLRACE__WANT__WANT_TOKEN;
    }
    bench_shutdown(&b);
    bench_end(&b);
}

static void test_shutdown_behind_steps(void **state) {
    (void)state;
    int32_t ids[RING_SLOTS];
    learn_ids(ids, RING_SLOTS);
    bench b;
    bench_run run = prompt_run(), next = {.generation = 1, .n_rows = 1, .without_ids = true};
    next.want = MILLRACE__WANT__WANT_TOKEN;
    start_alone(&b);
    bench_step(&b, 1, &run);
    for (uint32_t i = 0; i < RING_SLOTS - 1; i++) {
        next.first_position = 3 + i;
        next.sampled_id = ids[i];
        bench_step(&b, 2 + i, &next);
    }
    bench_shutdown(&b);
    for (uint64_t i = 1; i <= RING_SLOTS; i++)
        assert_int_equal(bench_tokens(&b)->step, i);
    bench_end(&b);
    assert_int_equal(b.status, MR_OK);
}

static void test_shutdown_before_the_plan(void **state) {
    (void)state;
    bench b;
    bench_start(&b, 0);
    bench_shutdown(&b);
    bench_end(&b);
    assert_int_equal(b.status, MR_OK);
}

/* A stage that has loaded and finds no room to say so still hears that it is to end. */
static void test_told_to_end_unheard(void **state) {
    (void)state;
    bench b;
    bench_start_unheard(&b, 0);
    bench_plan(&b, 1, NULL);
    b.told_to_end = true;
    bench_end(&b);
    assert_int_equal(b.status, MR_OK);
}

static void test_coordinator_leaves(void **state) {
    (void)state;
    bench b;
    bench_run run = prompt_run();
    bench_start(&b, 0);
    bench_end(&b);
    assert_int_equal(b.status, MR_E_PEER_LOST);
    start_alone(&b);
    bench_end(&b);
    assert_int_equal(b.status, MR_E_PEER_LOST);
    start_alone(&b);
    bench_step(&b, 1, &run);
    bench_end(&b);
    assert_int_equal(b.status, MR_E_PEER_LOST);
}

static void test_neighbour_leaves(void **state) {
    (void)state;
    bench b;
    mr_inbox *x;
    bench_run run = prompt_run();
    start_head(&b, &x);
    mr_inbox_destroy(x);
    bench_peer_leaves(&b);
    bench_expect(&b, MR_E_PEER_LOST, "endpoint 1");
    bench_start(&b, 1);
    bench_plan(&b, 2, NULL);
    bench_ready(&b);
    bench_open(&b, 0, 1, true);
    bench_step(&b, 1, &run);
    bench_peer_leaves(&b);
    bench_expect(&b, MR_E_PEER_LOST, "endpoint 0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_weights_of_plans),
        cmocka_unit_test(test_order_of_messages),
        cmocka_unit_test(test_malformed_frames),
        cmocka_unit_test(test_other_epochs_are_dropped),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_later_steps),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_tokens_for_the_head),
        cmocka_unit_test(test_shutdown_behind_steps),
        cmocka_unit_test(test_shutdown_before_the_plan),
        cmocka_unit_test(test_told_to_end_unheard),
        cmocka_unit_test(test_coordinator_leaves),
        cmocka_unit_test(test_neighbour_leaves),
    };
    bench_model_create();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_model_remove();
    return failed;
}
