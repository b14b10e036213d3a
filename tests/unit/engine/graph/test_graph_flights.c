/* Runs that are started and polled: what a device has in its queue when a start returns, several runs under way, what
 * is left after errors, and times by marks. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"
#include "tests/unit/engine/graph/test_graph_rig.h"

enum { N_FLIGHTS = 3, LONG_POLLS = 100000 };

static const mr_run ALL = {.n_rows = {1, ROWS, ROWS}};

typedef float block[ROWS][WIDTH];

/* A graph, and what its runs read and write. */
typedef struct bench {
    rig rig;
    int32_t in, out;
    mr_graph_flight *flights[N_FLIGHTS];
    block sent[N_FLIGHTS], got[N_FLIGHTS];
} bench;

/* A result of x. on_host: between two products of the first backend stands a node that the test device lacks. */
static int32_t add_nodes(rig *r, int32_t x, bool on_host) {
    x = carry(r, 0, x);
    if (on_host) {
        int32_t matrix = maker_of(r->g, x)->in[0];
        x = mr_graph_matmul(r->g, matrix, mr_graph_soft_cap(r->g, x, 50.0f), NONE, NONE);
    }
    x = mr_graph_scale(r->g, mr_graph_add(r->g, x, x), 3.0f);
    mr_graph_output(r->g, x);
    return x;
}

static bench bench_make(const test_device_options *device, bool on_host) {
    bench b = {0};
    mr_err err = {0};
    rig_add_device(&b.rig, device);
    mr_cpu_options cpu = {.n_threads = 1};
    expect_ok(mr_cpu_backend_create(&cpu, &b.rig.backends.at[b.rig.backends.n++], &err), &err);
    b.rig.g = graph_make(ROWS, ROWS);
    b.in = add_rows(b.rig.g);
    b.out = add_nodes(&b.rig, b.in, on_host);
    rig_finish(&b.rig);
    assert_int_equal(b.rig.stats.needs_host, on_host);
    rig_place(&b.rig);
    for (int i = 0; i < N_FLIGHTS; i++) {
        expect_ok(mr_graph_flight_create(b.rig.stats.n_copies, &b.flights[i], &err), &err);
        for (int e = 0; e < ROWS * WIDTH; e++)
            b.sent[i][e / WIDTH][e % WIDTH] = (float)(e - 70) * 0.37f + (float)i * 11.0f;
    }
    return b;
}

static test_device_options without_soft_cap(void) {
    return (test_device_options){.ops = TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_SOFT_CAP), .seed = 5, .max_delay_us = 30};
}

static void bench_destroy(bench *b) {
    for (int i = 0; i < N_FLIGHTS; i++)
        mr_graph_flight_destroy(b->flights[i]);
    rig_destroy(&b->rig);
}

static mr_status start(bench *b, int i, mr_err *err) {
    mr_status status = mr_graph_set_rows(b->rig.g, b->in, b->sent[i], sizeof b->sent[i][0], ROWS, err);
    const mr_graph_read read = {.tensor = b->out, .n_rows = ROWS, .dst = b->got[i], .row_bytes = sizeof b->got[i][0]};
    return status == MR_OK ? mr_graph_start(b->rig.g, &ALL, &read, 1, b->flights[i], err) : status;
}

static bool is_done(bench *b, int i, int64_t deadline_ns) {
    bool done = false;
    mr_err err = {0};
    expect_ok(mr_graph_poll(b->flights[i], deadline_ns, &done, &err), &err);
    return done;
}

/* The result has the bits of the CPU. */
static void expect_result(const bench *b, int i, bool on_host) {
    rig r = rig_make(0, 0);
    block want;
    int32_t in = add_rows(r.g), out = add_nodes(&r, in, on_host);
    rig_finish(&r);
    rig_place(&r);
    assert_int_equal(mr_graph_set_rows(r.g, in, b->sent[i], sizeof b->sent[i][0], ROWS, NULL), MR_OK);
    assert_int_equal(mr_graph_run(r.g, &ALL, NULL), MR_OK);
    memcpy(want, mr_graph_rows(r.g, out, 0), sizeof want);
    assert_memory_equal(b->got[i], want, sizeof want);
    rig_destroy(&r);
}

/* --- One run ----------------------------------------------------------------------------------------------------- */

/* A start gives the device the whole run; the rows come back by one get. */
static void test_a_start_queues_the_whole_run(void **state) {
    (void)state;
    test_device_options o = without_soft_cap();
    bench b = bench_make(&o, false);
    mr_backend *device = b.rig.backends.at[0];
    mr_err err = {0};
    test_device_reset(device, 0);
    test_device_hold(device, 3); /* the device begins when three waits have failed */
    uint64_t n_allocs = mr_mem_get_stats().n_allocs;
    expect_ok(start(&b, 0, &err), &err);
    assert_false(is_done(&b, 0, 0));
    test_device_stats stats = test_device_get_stats(device);
    assert_int_equal(stats.n_sets, 1);
    assert_int_equal(stats.n_submits, 1);
    assert_int_equal(stats.n_gets, 1);
    assert_int_equal(stats.n_marks, 2);
    assert_int_equal(stats.most_waiting, 5);
    int n_polls = 0;
    while (!is_done(&b, 0, 0))
        n_polls++;
    assert_true(n_polls >= 1);
    assert_int_equal(test_device_get_stats(device).n_waits, 0);
    assert_int_equal(mr_mem_get_stats().n_allocs, n_allocs);
    assert_true(is_done(&b, 0, 0)); /* and stays so */
    assert_null(mr_graph_rows(b.rig.g, b.out, 0));
    expect_result(&b, 0, false);
    bench_destroy(&b);
}

/* The host computes in polls, and no poll without a deadline waits for the device. */
static void test_the_host_goes_on_in_polls(void **state) {
    (void)state;
    test_device_options o = without_soft_cap();
    bench b = bench_make(&o, true);
    mr_backend *device = b.rig.backends.at[0];
    mr_err err = {0};
    assert_int_equal(b.rig.stats.n_splits, 3);
    for (int i = 0; i < N_FLIGHTS; i++) {
        test_device_reset(device, 0);
        test_device_hold(device, 2);
        uint64_t n_allocs = mr_mem_get_stats().n_allocs;
        expect_ok(start(&b, i, &err), &err);
        assert_false(is_done(&b, i, 0));
        int n_polls = 0;
        while (!is_done(&b, i, i == 2 ? mr_clock_now_ns() + 1000 : 0) && n_polls < LONG_POLLS)
            n_polls++;
        if (i < 2)
            assert_int_equal(test_device_get_stats(device).n_waits, 0);
        assert_int_equal(mr_mem_get_stats().n_allocs, n_allocs);
        expect_result(&b, i, true);
    }
    bench_destroy(&b);
}

/* Everything runs inside the start; results are read where they lie. */
static void test_on_the_cpu_a_start_is_a_run(void **state) {
    (void)state;
    rig r = rig_make(0, 0);
    mr_graph_flight *f = NULL;
    mr_err err = {0};
    bool done = false;
    int32_t x = add_rows(r.g), y = mr_graph_add(r.g, carry(&r, 0, x), x);
    mr_graph_output(r.g, y);
    rig_finish(&r);
    rig_place(&r);
    expect_ok(mr_graph_flight_create(0, &f, &err), &err);
    set_all(&r, x, 5.0f);
    uint64_t n_allocs = mr_mem_get_stats().n_allocs;
    expect_ok(mr_graph_start(r.g, &ALL, NULL, 0, f, &err), &err);
    expect_all(&r, y, 10.0f, 2.0f);
    expect_ok(mr_graph_poll(f, 0, &done, &err), &err);
    assert_true(done);
    assert_int_equal(mr_mem_get_stats().n_allocs, n_allocs);
    assert_true(mr_graph_flight_ns(f) > 0);
    const float *row = mr_graph_rows(r.g, y, 2);
    assert_true(row[3] == 10.0f + 2.0f * (2 * WIDTH + 3));
    mr_graph_flight_destroy(f);
    rig_destroy(&r);
}

/* --- Runs under way ---------------------------------------------------------------------------------------------- */

/* The next runs of the graph are in the queue before the device begins with the first one. */
static void test_runs_of_one_graph(void **state) {
    (void)state;
    test_device_options o = without_soft_cap();
    bench b = bench_make(&o, false);
    mr_backend *device = b.rig.backends.at[0];
    mr_err err = {0};
    test_device_reset(device, 0);
    test_device_hold(device, N_FLIGHTS + 1);
    int64_t from_ns = mr_clock_now_ns(), worked_ns = 0;
    for (int i = 0; i < N_FLIGHTS; i++)
        expect_ok(start(&b, i, &err), &err);
    assert_int_equal(test_device_get_stats(device).most_waiting, 5 * N_FLIGHTS);
    assert_int_equal(test_device_get_stats(device).n_waits, 0);
    for (int i = N_FLIGHTS - 1; i >= 0; i--) { /* the last one first: the queue is in order */
        assert_true(is_done(&b, i, MR_NEVER));
        expect_result(&b, i, false);
    }
    /* The times of the runs do not overlap, and each takes some. */
    int64_t wall_ns = mr_clock_now_ns() - from_ns;
    for (int i = 0; i < N_FLIGHTS; i++) {
        assert_true(mr_graph_flight_ns(b.flights[i]) > 0);
        worked_ns += mr_graph_flight_ns(b.flights[i]);
    }
    assert_true(worked_ns <= wall_ns);
    bench_destroy(&b);
}

/* What a run reads may be written again when the device has begun with the run, long before the run is done. */
static void test_a_run_has_begun(void **state) {
    (void)state;
    enum { NODE_NS = 1000, CALL_NS = 100 };
    test_device_options o = without_soft_cap();
    o.max_delay_us = 0;
    o.clock = test_clock_create(0);
    o.costs = (test_device_costs){.call_ns = CALL_NS, .node_ns = NODE_NS};
    bench b = bench_make(&o, false);
    mr_err err = {0};
    assert_true(mr_graph_flight_has_begun(b.flights[0])); /* there is no run */
    for (int i = 0; i < 2; i++)
        expect_ok(start(&b, i, &err), &err);
    assert_false(mr_graph_flight_has_begun(b.flights[0]));
    test_clock_advance(o.clock, CALL_NS); /* the set */
    assert_true(mr_graph_flight_has_begun(b.flights[0]));
    assert_false(mr_graph_flight_has_begun(b.flights[1]));
    assert_false(is_done(&b, 0, 0));
    test_clock_advance(o.clock, b.rig.stats.n_nodes * NODE_NS + 2 * CALL_NS);
    assert_false(mr_graph_flight_has_begun(b.flights[1]));
    assert_true(is_done(&b, 0, 0));
    assert_true(is_done(&b, 1, MR_NEVER));
    assert_true(mr_graph_flight_has_begun(b.flights[1]));
    bench_destroy(&b);
    test_clock_destroy(o.clock);
}

/* Two buckets in the same work memory: a run of each, in turn. */
static void test_runs_of_two_graphs(void **state) {
    (void)state;
    test_device_options o = without_soft_cap();
    bench b = bench_make(&o, false);
    mr_backend *device = b.rig.backends.at[0];
    mr_graph_stats stats;
    mr_err err = {0};
    bool done = false;
    block got;
    mr_graph *small = graph_make(2, 2);
    int32_t in = add_rows(small), out = mr_graph_scale(small, in, -0.5f);
    mr_graph_output(small, out);
    expect_ok(mr_graph_finish(small, &(mr_backends){.at = {device, b.rig.backends.at[1]}, .n = 2}, &stats, &err), &err);
    assert_true(stats.work_bytes[0] > 0 && stats.work_bytes[0] <= b.rig.stats.work_bytes[0]);
    expect_ok(mr_graph_place(small, b.rig.work, &err), &err);
    test_device_hold(device, 4);
    expect_ok(start(&b, 0, &err), &err);
    expect_ok(mr_graph_set_rows(small, in, b.sent[1], sizeof b.sent[1][0], 2, &err), &err);
    const mr_graph_read read = {.tensor = out, .n_rows = 2, .dst = got, .row_bytes = sizeof got[0]};
    expect_ok(mr_graph_start(small, &(mr_run){.n_rows = {1, 2, 2}}, &read, 1, b.flights[1], &err), &err);
    expect_ok(start(&b, 2, &err), &err);
    for (int i = 0; i < N_FLIGHTS; i += 2) {
        assert_true(is_done(&b, i, MR_NEVER));
        expect_result(&b, i, false);
    }
    expect_ok(mr_graph_poll(b.flights[1], 0, &done, &err), &err);
    assert_true(done);
    for (int e = 0; e < 2 * WIDTH; e++)
        assert_true(got[e / WIDTH][e % WIDTH] == b.sent[1][e / WIDTH][e % WIDTH] * -0.5f);
    mr_graph_destroy(small);
    bench_destroy(&b);
}

/* On the simulated clock: runs that were started early follow each other without a gap, and each one's time is that of
 * its own work, whatever stands before it in the queue and however late the host looks. */
static void test_times_are_those_of_the_device(void **state) {
    (void)state;
    enum { NODE_NS = 1000, CALL_NS = 100, LATE_NS = 50000 };
    test_device_options o = without_soft_cap();
    o.max_delay_us = 0;
    o.clock = test_clock_create(1);
    o.costs = (test_device_costs){.call_ns = CALL_NS, .node_ns = NODE_NS};
    bench b = bench_make(&o, false);
    mr_backend *device = b.rig.backends.at[0];
    mr_err err = {0};
    test_device_reset(device, 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N_FLIGHTS; i++)
            expect_ok(start(&b, i, &err), &err);
        test_clock_advance(o.clock, LATE_NS);
        for (int i = 0; i < N_FLIGHTS; i++) {
            assert_true(is_done(&b, i, 0));
            /* The program and the get. */
            assert_int_equal(mr_graph_flight_ns(b.flights[i]), b.rig.stats.n_nodes * NODE_NS + 2 * CALL_NS);
        }
        assert_int_equal(test_device_get_stats(device).n_gaps, round); /* between the rounds */
    }
    bench_destroy(&b);
    test_clock_destroy(o.clock);
}

/* The time of a mark is known when the device has reached the mark, and not earlier. */
static void test_a_mark_that_is_not_reached(void **state) {
    (void)state;
    test_device_options o = without_soft_cap();
    bench b = bench_make(&o, false);
    mr_backend *device = b.rig.backends.at[0];
    mr_fence mark = 0;
    int64_t ns = 0;
    mr_err err = {0};
    test_device_hold(device, 1);
    expect_ok(device->ops->mark(device, &mark, &err), &err);
    expect_fails(device->ops->fence_ns(device, mark, &ns, &err), MR_E_TIMEOUT, &err, "not reached");
    expect_ok(device->ops->wait(device, mark, MR_NEVER, &err), &err);
    expect_ok(device->ops->fence_ns(device, mark, &ns, &err), &err);
    assert_true(ns > 0 && ns <= mr_clock_now_ns());
    bench_destroy(&b);
}

/* --- Ends -------------------------------------------------------------------------------------------------------- */

/* A flight that is destroyed waits for what the device has, and the graph serves other runs. */
static void test_a_run_is_given_up(void **state) {
    (void)state;
    for (int on_host = 0; on_host < 2; on_host++) {
        test_device_options o = without_soft_cap();
        bench b = bench_make(&o, on_host);
        mr_err err = {0};
        test_device_hold(b.rig.backends.at[0], 1000000);
        expect_ok(start(&b, 0, &err), &err);
        mr_graph_flight_destroy(b.flights[0]);
        b.flights[0] = NULL;
        memset(b.sent[0], 0, sizeof b.sent[0]); /* nobody reads it any more */
        expect_ok(start(&b, 1, &err), &err);
        assert_true(is_done(&b, 1, MR_NEVER));
        expect_result(&b, 1, on_host);
        bench_destroy(&b);
    }
}

/* The device breaks at each call in turn. Two runs are started where the graph allows it, then all are polled. Every
 * run ends with the result or the error, and none of its work is left: what it reads and writes is freed at once. */
static int break_at(int32_t n_good, bool on_host) {
    test_device_options o = without_soft_cap();
    bench b = bench_make(&o, on_host);
    int n_started = 0, n_failed = 0;
    test_device_reset(b.rig.backends.at[0], n_good);
    for (int i = 0; i < (on_host ? 1 : 2); i++) {
        mr_err err = {0};
        mr_status status = start(&b, i, &err);
        if (status != MR_OK)
            expect_fails(status, MR_E_DEVICE, &err, "broken");
        n_started += status == MR_OK;
        n_failed += status != MR_OK;
    }
    for (int i = 0; i < n_started; i++) {
        mr_err err = {0};
        bool done = false;
        mr_status status = mr_graph_poll(b.flights[i], MR_NEVER, &done, &err);
        if (status != MR_OK) {
            expect_fails(status, MR_E_DEVICE, &err, "broken");
            n_failed++;
            expect_ok(mr_graph_poll(b.flights[i], 0, &done, &err), &err); /* the run is over */
            assert_true(done);
            continue;
        }
        assert_true(done);
        expect_result(&b, i, on_host);
    }
    bench_destroy(&b);
    return n_failed;
}

static void test_a_device_that_breaks(void **state) {
    (void)state;
    for (int on_host = 0; on_host < 2; on_host++) {
        int n_good = 1, n_one = 0, n_two = 0;
        for (int n_failed = 1; n_failed > 0; n_good++) {
            n_failed = break_at(n_good, on_host);
            n_one += n_failed == 1;
            n_two += n_failed == 2;
        }
        print_message("%s: one run failed %d times, both %d times\n", on_host ? "with the host" : "device alone", n_one,
                      n_two);
        /* A run of the device alone has 5 calls; with the host it has 8. The first call works. */
        assert_int_equal(n_one, on_host ? 7 : 5);
        assert_int_equal(n_two, on_host ? 0 : 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_start_queues_the_whole_run),
        cmocka_unit_test(test_the_host_goes_on_in_polls),
        cmocka_unit_test(test_on_the_cpu_a_start_is_a_run),
        cmocka_unit_test(test_runs_of_one_graph),
        cmocka_unit_test(test_a_run_has_begun),
        cmocka_unit_test(test_runs_of_two_graphs),
        cmocka_unit_test(test_times_are_those_of_the_device),
        cmocka_unit_test(test_a_mark_that_is_not_reached),
        cmocka_unit_test(test_a_run_is_given_up),
        cmocka_unit_test(test_a_device_that_breaks),
    };
    return cmocka_run_group_tests_name("graph_flights", tests, NULL, NULL);
}
