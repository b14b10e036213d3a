// SPDX-License-Identifier: Apache-2.0
/* Every allocation and every post of a scenario fails once. A step's messages through links allocate nothing. */

#include <string.h>

#include "engine/base/mem.h"
#include "proto/channel_local.h"
#include "proto/link.h"
#include "proto/messages.h"
#include "tests/support/test.h"

enum { SLOTS = 3, PAYLOAD = 4096, MAX_REQUESTS = 16, EPOCH = 2, MESSAGES = 12, RUNS = 8, ARENA_BYTES = 64 << 10 };

/* A channel that forwards to another channel and fails its nth post. */
typedef struct faulty {
    mr_channel base;
    mr_channel *real;
    int posts_left; /* number of posts before the post that fails */
} faulty;

static faulty *faulty_of(mr_channel *ch) {
    return (faulty *)ch;
}

static bool fails_now(mr_channel *ch) {
    return faulty_of(ch)->posts_left-- == 0;
}

static mr_status faulty_post_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                                  mr_channel_request *out, mr_err *err) {
    if (fails_now(ch))
        return mr_err_set(err, MR_E_NO_MEMORY, "this send was to fail");
    return mr_channel_post_send(faulty_of(ch)->real, peer, tag, data, bytes, out, err);
}

static mr_status faulty_post_recv(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                                  mr_channel_request *out, mr_err *err) {
    if (fails_now(ch))
        return mr_err_set(err, MR_E_NO_MEMORY, "this receive was to fail");
    return mr_channel_post_recv(faulty_of(ch)->real, peer, tag, buffer, capacity, out, err);
}

static mr_status faulty_test(mr_channel *ch, mr_channel_request request, mr_completion *out, mr_err *err) {
    return mr_channel_test(faulty_of(ch)->real, request, out, err);
}

static bool faulty_cancel(mr_channel *ch, mr_channel_request request) {
    return mr_channel_cancel(faulty_of(ch)->real, request);
}

static const mr_channel_ops faulty_ops = {
    .name = "faulty",
    .post_send = faulty_post_send,
    .post_recv = faulty_post_recv,
    .test = faulty_test,
    .cancel = faulty_cancel,
};

static faulty faulty_over(mr_channel *real, int posts_left) {
    return (faulty){.base = {.ops = &faulty_ops, .self = real->self, .n_peers = real->n_peers},
                    .real = real,
                    .posts_left = posts_left};
}

/* Sends message number i, a decode step, or at i == 4 something malformed; false when the link has no room or no
 * memory. */
static bool put_step(mr_outbox *out, uint32_t i) {
    Millrace__Run runs[RUNS], *run_list[RUNS];
    Millrace__StepPlan step = MILLRACE__STEP_PLAN__INIT;
    Millrace__Control control = MILLRACE__CONTROL__INIT;
    uint8_t *payload = NULL;
    size_t bytes = 0;
    assert_int_equal(mr_outbox_reserve(out, &payload, NULL), MR_OK);
    if (!payload)
        return false;
    for (uint32_t k = 0; k < RUNS; k++) {
        runs[k] = (Millrace__Run)MILLRACE__RUN__INIT;
        runs[k].slot = k;
        runs[k].n_rows = 1;
        runs[k].first_position = i;
        runs[k].want = MILLRACE__WANT__WANT_TOKEN;
        run_list[k] = &runs[k];
    }
    step.step = i;
    step.n_runs = RUNS;
    step.runs = run_list;
    control.body_case = MILLRACE__CONTROL__BODY_STEP;
    control.step = &step;
    assert_int_equal(mr_msg_pack(&control.base, payload, PAYLOAD, &bytes, NULL), MR_OK);
    if (i == 4)
        payload[0] ^= 0x80;
    const mr_frame f = {.step = i, .payload_bytes = bytes};
    mr_status status = mr_outbox_send(out, &f, NULL);
    assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
    return status == MR_OK;
}

/* Takes one message; false when there is none, or no memory. */
static bool take_step(mr_inbox *in, mr_arena *arena, uint32_t expected) {
    static const mr_msg_limits limits = {1, 64, 16, 1024, 64, 100};
    mr_frame f;
    const uint8_t *payload = NULL;
    Millrace__Control *control = NULL;
    mr_status status = mr_inbox_peek(in, &f, &payload, NULL);
    assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
    if (status != MR_OK || !payload)
        return false;
    assert_int_equal(f.step, expected);
    status = mr_msg_unpack_control(payload, (size_t)f.payload_bytes, &limits, arena, &control, NULL);
    assert_int_equal(status, expected == 4 ? MR_E_PROTOCOL : MR_OK);
    if (status == MR_OK) {
        assert_int_equal(control->step->step, expected);
        assert_int_equal(control->step->n_runs, RUNS);
        assert_int_equal(control->step->runs[RUNS - 1]->first_position, expected);
    }
    status = mr_inbox_release(in, NULL);
    assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
    return status == MR_OK;
}

typedef struct world {
    mr_local_hub *hub;
    mr_channel *a, *b;
    faulty fa, fb;
    mr_outbox *out;
    mr_inbox *in;
} world;

static mr_status world_init(world *w, int fail_a, int fail_b) {
    mr_err err = {0};
    *w = (world){0};
    mr_status status = mr_local_hub_create(2, MAX_REQUESTS, &w->hub, &err);
    if (status == MR_OK)
        status = mr_local_channel_open(w->hub, 0, &w->a, &err);
    if (status == MR_OK)
        status = mr_local_channel_open(w->hub, 1, &w->b, &err);
    if (status != MR_OK)
        return status;
    w->fa = faulty_over(w->a, fail_a);
    w->fb = faulty_over(w->b, fail_b);
    status = mr_outbox_create(&w->fa.base, 1, MR_LINK_CONTROL, EPOCH, SLOTS, PAYLOAD, &w->out, &err);
    if (status == MR_OK)
        status = mr_inbox_create(&w->fb.base, 0, MR_LINK_CONTROL, EPOCH, SLOTS, PAYLOAD, &w->in, &err);
    return status;
}

static void world_deinit(world *w) {
    mr_inbox_destroy(w->in);
    mr_outbox_destroy(w->out);
    mr_channel_destroy(w->b);
    mr_channel_destroy(w->a);
    mr_local_hub_destroy(w->hub);
}

/* Sends frames that are dropped: of another epoch, and with a broken checksum. */
static void put_rubbish(world *w) {
    uint8_t frame[MR_FRAME_BYTES];
    mr_channel_request r = 0;
    mr_completion c;
    const mr_frame f = {.kind = MR_FRAME_CONTROL, .epoch = EPOCH + 4096};
    mr_frame_seal(&f, frame);
    assert_int_equal(mr_channel_post_send(w->a, 1, mr_link_tag(MR_LINK_CONTROL, EPOCH), frame, sizeof frame, &r, NULL),
                     MR_OK);
    assert_int_equal(mr_channel_test(w->a, r, &c, NULL), MR_OK);
    assert_true(c.done);
}

/* All messages arrive in order, whichever post failed. */
static void pass_messages(world *w, mr_arena *arena) {
    uint32_t sent = 0, taken = 0;
    put_rubbish(w);
    for (int rounds = 0; taken < MESSAGES; rounds++) {
        assert_true(rounds < 10 * MESSAGES);
        if (sent < MESSAGES && put_step(w->out, sent))
            sent++;
        if (taken < MESSAGES && take_step(w->in, arena, taken))
            taken++;
    }
    assert_int_equal(sent, MESSAGES);
}

static void test_posts_fail(void **state) {
    (void)state;
    static uint64_t memory[ARENA_BYTES / 8];
    int n_created = 0;
    for (int n = 0; n < 2 * (MESSAGES + SLOTS + 2); n++) {
        world w;
        mr_arena *arena = mr_arena_create_fixed(memory, sizeof memory);
        mr_status status = world_init(&w, n % 2 ? -1 : n / 2, n % 2 ? n / 2 : -1);
        assert_int_equal(status, n % 2 && n / 2 < SLOTS ? MR_E_NO_MEMORY : MR_OK);
        if (status == MR_OK) {
            pass_messages(&w, arena);
            n_created++;
        }
        world_deinit(&w);
    }
    assert_int_equal(n_created, 2 * (MESSAGES + SLOTS + 2) - SLOTS);
}

static void test_allocations_fail(void **state) {
    (void)state;
    static uint64_t memory[ARENA_BYTES / 8];
    mr_arena *arena = mr_arena_create_fixed(memory, sizeof memory);
    mr_status status = MR_E_NO_MEMORY;
    int n = 0;
    for (; status != MR_OK; n++) {
        world w;
        assert_true(n < 20);
        mr_mem_fail_at(n);
        status = world_init(&w, -1, -1);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        if (status == MR_OK)
            pass_messages(&w, arena);
        world_deinit(&w);
    }
    /* Four allocations fail in turn: the hub, its requests and two links; the fifth run succeeds. */
    assert_int_equal(n, 5);
}

static void test_nothing_is_allocated(void **state) {
    (void)state;
    static uint64_t memory[ARENA_BYTES / 8];
    mr_arena *arena = mr_arena_create_fixed(memory, sizeof memory);
    world w;
    assert_int_equal(world_init(&w, -1, -1), MR_OK);
    uint64_t n_allocs = mr_mem_thread_allocs();
    for (int i = 0; i < 100; i++)
        pass_messages(&w, arena);
    assert_int_equal(mr_mem_thread_allocs(), n_allocs);
    world_deinit(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_posts_fail),
        cmocka_unit_test(test_allocations_fail),
        cmocka_unit_test(test_nothing_is_allocated),
    };
    return cmocka_run_group_tests_name("proto_faults", tests, NULL, NULL);
}
