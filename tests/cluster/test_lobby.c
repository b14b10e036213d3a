/* A rank in the lobby ends whenever it is told to end, and reports what is wrong with a message. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tests/cluster/test_worker_bench.h"
#include "tests/support/test.h"

static void expect_end(bench *b, mr_status want) {
    bench_end(b);
    if (b->status != want)
        fail_msg("%s: %s", mr_status_name(b->status), b->status == MR_OK ? "" : b->err.text);
}

/* All layers, with slot 0 open in generation 1. */
static void start_stage(bench *b) {
    bench_lobby_start(b);
    bench_plan(b, 1, NULL);
    bench_ready(b);
    bench_open(b, 0, 1, true);
}

static bench_run prompt_run(void) {
    return (bench_run){.generation = 1, .n_rows = 3, .n_blocks = 1, .id = 1, .want = MILLRACE__WANT__WANT_TOKEN};
}

/* Whatever the stage waits for: its plan, messages, the rows of a step. */
static void test_shutdown_ends_a_stage(void **state) {
    (void)state;
    bench b;
    bench_run run = prompt_run();
    bench_start_in_lobby(&b, 0);
    bench_lobby_shutdown(&b);
    expect_end(&b, MR_OK);
    bench_start_in_lobby(&b, 0);
    bench_lobby_start(&b);
    bench_lobby_shutdown(&b);
    expect_end(&b, MR_OK);
    bench_start_in_lobby(&b, 0);
    start_stage(&b);
    bench_lobby_shutdown(&b);
    expect_end(&b, MR_OK);
    /* The second stage gets a step, but the head never sends the rows. */
    bench_start_in_lobby(&b, 1);
    bench_lobby_start(&b);
    bench_plan(&b, 2, NULL);
    bench_ready(&b);
    bench_open(&b, 0, 1, true);
    bench_step(&b, 1, &run);
    bench_lobby_shutdown(&b);
    expect_end(&b, MR_OK);
}

static void test_stage_fails(void **state) {
    (void)state;
    bench b;
    bench_start_in_lobby(&b, 0);
    bench_lobby_start(&b);
    bench_close(&b, 0, 1); /* allowed although there is no plan */
    bench_lobby_shutdown(&b);
    expect_end(&b, MR_OK);
}

static void test_coordinator_leaves(void **state) {
    (void)state;
    bench b;
    bench_start_in_lobby(&b, 0);
    expect_end(&b, MR_E_PEER_LOST);
    bench_start_in_lobby(&b, 0);
    start_stage(&b);
    expect_end(&b, MR_E_PEER_LOST);
}

/* A sealed control frame of epoch 0; returns its length. */
static size_t make_frame(uint8_t *buffer, const void *payload, size_t n) {
    mr_frame frame = {.kind = MR_FRAME_CONTROL, .payload_bytes = n};
    memcpy(buffer + MR_FRAME_BYTES, payload, n);
    mr_frame_seal(&frame, buffer);
    return MR_FRAME_BYTES + n;
}

static void send_and_expect(const uint8_t *bytes, size_t n, bool stage_runs) {
    bench b;
    bench_start_in_lobby(&b, 0);
    if (stage_runs)
        start_stage(&b);
    bench_raw(&b, 0, bytes, n);
    b.told_to_end = true; /* the rank ends by itself, before the coordinator leaves */
    expect_end(&b, MR_E_PROTOCOL);
}

static void test_malformed_messages(void **state) {
    (void)state;
    static uint8_t bytes[MR_MAX_LOBBY_BYTES + 512];
    for (int stage_runs = 0; stage_runs < 2; stage_runs++) {
        memset(bytes, 0, sizeof bytes);
        send_and_expect(bytes, 0, stage_runs);
        send_and_expect(bytes, 100, stage_runs);
        send_and_expect(bytes, sizeof bytes, stage_runs); /* longer than the receive buffer */
        send_and_expect(bytes, make_frame(bytes, "\xff\xff\xff", 3), stage_runs);
        bytes[MR_FRAME_BYTES] ^= 1; /* not what was sealed */
        send_and_expect(bytes, MR_FRAME_BYTES + 3, stage_runs);
        send_and_expect(bytes, make_frame(bytes, "", 0), stage_runs);         /* a message without a body */
        send_and_expect(bytes, make_frame(bytes, "\x32\x00", 2), stage_runs); /* a start message of epoch 0 */
    }
    send_and_expect(bytes, make_frame(bytes, "\x1a\x00", 2), false); /* a close message while no stage runs */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shutdown_ends_a_stage),
        cmocka_unit_test(test_stage_fails),
        cmocka_unit_test(test_coordinator_leaves),
        cmocka_unit_test(test_malformed_messages),
    };
    bench_model_create();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_model_remove();
    return failed;
}
