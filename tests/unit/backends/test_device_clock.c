/* The test device on a simulated clock: when its works begin and end, what the host waits for, and what is counted. And
 * on the real clock: its thread sleeps. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/clock.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"

enum { BYTES = 1000, STEP_NS = 7, COLUMNS = 16, ROWS = 4 };

typedef struct rig {
    test_clock *clock;
    mr_backend *device;
    mr_buffer *buffer;
} rig;

static const test_device_costs COSTS = {.call_ns = 100, .byte_ns = 2.0, .node_ns = 1000, .row_ns = 10};

static mr_backend *device(const test_device_options *options) {
    mr_backend *be = NULL;
    mr_err err = {0};
    expect_ok(test_device_create(options, &be, &err), &err);
    return be;
}

static rig rig_make(bool host_addressable) {
    rig r = {.clock = test_clock_create(STEP_NS)};
    r.device = device(&(test_device_options){
        .ops = TEST_DEVICE_ALL_OPS, .host_addressable = host_addressable, .costs = COSTS, .clock = r.clock});
    assert_int_equal(r.device->ops->buffer_create(r.device, BYTES, &r.buffer, NULL), MR_OK);
    return r;
}

static void rig_destroy(rig *r) {
    mr_backend_drain(r->device);
    r->device->ops->buffer_destroy(r->device, r->buffer);
    mr_backend_destroy(r->device);
    test_clock_destroy(r->clock);
}

static const uint8_t SOURCE[BYTES];

static mr_fence set(rig *r, size_t bytes) {
    mr_fence fence = 0;
    assert_int_equal(r->device->ops->set(r->device, r->buffer, 0, SOURCE, bytes, &fence, NULL), MR_OK);
    return fence;
}

static mr_status wait_until(rig *r, mr_fence fence, int64_t deadline_ns) {
    return r->device->ops->wait(r->device, fence, deadline_ns, NULL);
}

/* Two works at once, then one after a pause, which is a gap. */
static void test_works_lie_one_behind_the_other(void **state) {
    (void)state;
    rig r = rig_make(false);
    mr_fence first = set(&r, 100), second = set(&r, 50); /* 300 ns and 200 ns */
    assert_int_equal(test_clock_now_ns(r.clock), 0);
    assert_int_equal(wait_until(&r, first, MR_NEVER), MR_OK);
    assert_int_equal(test_clock_now_ns(r.clock), 300);
    test_clock_advance(r.clock, 1000);
    assert_int_equal(wait_until(&r, second, MR_NEVER), MR_OK); /* it ended at 500 */
    assert_int_equal(test_clock_now_ns(r.clock), 1300);
    mr_fence third = set(&r, 0);
    assert_int_equal(wait_until(&r, third, MR_NEVER), MR_OK);
    assert_int_equal(test_clock_now_ns(r.clock), 1400);
    test_device_stats stats = test_device_get_stats(r.device);
    assert_int_equal(stats.busy_ns, 300 + 200 + 100);
    assert_int_equal(stats.idle_ns, 800);
    assert_int_equal(stats.n_gaps, 1);
    assert_int_equal(stats.n_waits, 2);
    assert_int_equal(stats.n_polls, 0);
    test_device_reset(r.device, 0);
    test_clock_advance(r.clock, 1000);
    set(&r, 0); /* the time before the first work is no gap */
    assert_int_equal(test_device_get_stats(r.device).n_gaps, 0);
    rig_destroy(&r);
}

static void test_a_poll_takes_a_step(void **state) {
    (void)state;
    rig r = rig_make(false);
    mr_fence fence = set(&r, 0); /* 100 ns */
    int n_polls = 1;
    for (; wait_until(&r, fence, 0) == MR_E_TIMEOUT; n_polls++)
        assert_int_equal(test_clock_now_ns(r.clock), n_polls * STEP_NS);
    assert_int_equal(n_polls, 15);
    assert_int_equal(test_clock_now_ns(r.clock), 15 * STEP_NS);
    assert_int_equal(wait_until(&r, fence, 0), MR_OK); /* a fence that is reached costs nothing */
    assert_int_equal(test_clock_now_ns(r.clock), 15 * STEP_NS);
    assert_int_equal(test_device_get_stats(r.device).n_polls, 15);
    rig_destroy(&r);
}

/* a + b of ROWS rows at most. */
static mr_program *add_program(mr_backend *be, mr_buffer *buffer, mr_tensor t[3], mr_node *node) {
    mr_program *program = NULL;
    mr_err err = {0};
    for (int i = 0; i < 3; i++) {
        assert_true(mr_tensor_init(&t[i], "x", MR_TYPE_F32, COLUMNS, ROWS, MR_STORAGE_WORK, MR_ROWS_STEP));
        t[i].buffer = buffer;
        t[i].offset = (size_t)i * 256;
    }
    *node = (mr_node){.op = MR_OP_ADD, .in = {0, 1}, .out = 2};
    for (int k = 2; k < MR_MAX_INPUTS; k++)
        node->in[k] = MR_NO_TENSOR;
    mr_program_desc desc = {.tensors = t, .nodes = node, .n_nodes = 1};
    expect_ok(be->ops->program_create(be, &desc, &program, &err), &err);
    return program;
}

static int64_t seven_each(void *ctx, const mr_program_desc *program, const mr_run *run) {
    return *(int64_t *)ctx * program->n_nodes * run->n_rows[MR_ROWS_STEP];
}

static void test_runs_cost_by_nodes_and_rows(void **state) {
    (void)state;
    mr_tensor t[3];
    mr_node node;
    mr_fence fence;
    for (int on_host = 0; on_host < 2; on_host++) {
        rig r = rig_make(on_host);
        mr_program *p = add_program(r.device, r.buffer, t, &node);
        mr_run run = {.n_rows = {[MR_ROWS_STEP] = 3}};
        assert_int_equal(r.device->ops->submit(r.device, p, &run, &fence, NULL), MR_OK);
        /* A device works while the host goes on; in the host's memory the host itself works. */
        assert_int_equal(test_clock_now_ns(r.clock), on_host ? 1130 : 0);
        assert_int_equal(wait_until(&r, fence, MR_NEVER), MR_OK);
        assert_int_equal(test_clock_now_ns(r.clock), 1130);
        r.device->ops->program_destroy(r.device, p);
        rig_destroy(&r);
    }
    int64_t seven = 7;
    test_clock *clock = test_clock_create(1);
    rig r = {.clock = clock};
    r.device = device(&(test_device_options){
        .ops = TEST_DEVICE_ALL_OPS, .costs = {.program_ns = seven_each, .ctx = &seven, .node_ns = 1}, .clock = clock});
    assert_int_equal(r.device->ops->buffer_create(r.device, BYTES, &r.buffer, NULL), MR_OK);
    mr_program *p = add_program(r.device, r.buffer, t, &node);
    assert_int_equal(r.device->ops->submit(r.device, p, &(mr_run){.n_rows = {[MR_ROWS_STEP] = 2}}, &fence, NULL),
                     MR_OK);
    assert_int_equal(wait_until(&r, fence, MR_NEVER), MR_OK);
    assert_int_equal(test_clock_now_ns(clock), 14);
    r.device->ops->program_destroy(r.device, p);
    rig_destroy(&r);
}

/* The time of a mark is that of the simulated clock. */
static void test_marks_give_simulated_times(void **state) {
    (void)state;
    rig r = rig_make(false);
    mr_fence first, second;
    int64_t first_ns, second_ns;
    test_clock_advance(r.clock, 5000);
    assert_int_equal(r.device->ops->mark(r.device, &first, NULL), MR_OK);
    set(&r, 50);
    assert_int_equal(r.device->ops->mark(r.device, &second, NULL), MR_OK);
    assert_int_equal(r.device->ops->fence_ns(r.device, first, &first_ns, NULL), MR_OK);
    assert_int_equal(first_ns, 5000);
    assert_int_equal(r.device->ops->fence_ns(r.device, second, &second_ns, NULL), MR_E_TIMEOUT);
    assert_int_equal(wait_until(&r, second, MR_NEVER), MR_OK);
    assert_int_equal(r.device->ops->fence_ns(r.device, second, &second_ns, NULL), MR_OK);
    assert_int_equal(second_ns, 5200);
    rig_destroy(&r);
}

/* Two devices work at the same time. */
static void test_devices_share_the_clock(void **state) {
    (void)state;
    rig r = rig_make(false);
    rig other = {.clock = r.clock};
    other.device =
        device(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .costs = {.call_ns = 250}, .clock = r.clock});
    assert_int_equal(other.device->ops->buffer_create(other.device, BYTES, &other.buffer, NULL), MR_OK);
    mr_fence a = set(&r, 50), b = set(&other, 50); /* 200 ns and 250 ns */
    assert_int_equal(wait_until(&other, b, MR_NEVER), MR_OK);
    assert_int_equal(wait_until(&r, a, MR_NEVER), MR_OK);
    assert_int_equal(test_clock_now_ns(r.clock), 250);
    other.device->ops->buffer_destroy(other.device, other.buffer);
    mr_backend_destroy(other.device);
    rig_destroy(&r);
}

/* Without a simulated clock a work takes its cost at least. */
static void test_the_real_device_sleeps(void **state) {
    (void)state;
    rig r = {.device =
                 device(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .costs = {.call_ns = 2 * MR_NS_PER_MS}})};
    assert_int_equal(r.device->ops->buffer_create(r.device, BYTES, &r.buffer, NULL), MR_OK);
    int64_t start_ns = mr_clock_now_ns();
    set(&r, 1);
    mr_fence fence = set(&r, 1);
    assert_int_equal(wait_until(&r, fence, start_ns + MR_NS_PER_MS), MR_E_TIMEOUT);
    assert_int_equal(wait_until(&r, fence, MR_NEVER), MR_OK);
    assert_true(mr_clock_now_ns() - start_ns >= 4 * MR_NS_PER_MS);
    rig_destroy(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_works_lie_one_behind_the_other), cmocka_unit_test(test_a_poll_takes_a_step),
        cmocka_unit_test(test_runs_cost_by_nodes_and_rows),    cmocka_unit_test(test_marks_give_simulated_times),
        cmocka_unit_test(test_devices_share_the_clock),        cmocka_unit_test(test_the_real_device_sleeps),
    };
    return cmocka_run_group_tests_name("device_clock", tests, NULL, NULL);
}
