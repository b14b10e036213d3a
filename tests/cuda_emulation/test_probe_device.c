/* Two ranks measure the ways between their emulated GPUs: figures of each way, a way that fails at one end, a slow way,
 * and an end that is told to stop. Nothing is left behind. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <time.h>

#include "engine/base/thread.h"
#include "tests/cuda_emulation/device_link_rig.h"
#include "tests/cuda_emulation/driver.h"
#include "tests/support/test.h"
#include "worker/lobby/probe_device.h"

enum { LIMIT_S = 30 };

typedef struct end {
    mr_probe_device_config config;
    mr_thread *thread;
    int32_t n_asked, ends_at; /* told_to_end says so at this call; 0: never */
    double latency_s, second_bytes;
    mr_status status;
    mr_err err;
} end;

static bool told_to_end(void *ctx) {
    end *e = ctx;
    return ++e->n_asked == e->ends_at || (e->ends_at > 0 && e->n_asked > e->ends_at);
}

static void run(void *ctx) {
    end *e = ctx;
    e->status = mr_probe_device(&e->config, &e->latency_s, &e->second_bytes, &e->err);
}

/* Both ends of a measurement, in two threads, and how it ended. */
static void measure(link_rig *r, mr_way way, uint32_t epoch, int32_t ends_at, end out[2]) {
    mr_err err;
    int64_t start_ns = mr_clock_now_ns();
    for (int32_t i = 0; i < 2; i++) {
        out[i] = (end){.ends_at = ends_at};
        out[i].config = (mr_probe_device_config){.channel = r->at[i].channel,
                                                 .peer = 1 - i,
                                                 .epoch = epoch,
                                                 .is_sender = i == LINK_SENDER,
                                                 .way = way,
                                                 .device = r->at[i].be,
                                                 .told_to_end = told_to_end,
                                                 .ctx = &out[i]};
        expect_ok(mr_thread_create("probe", 0, run, &out[i], &out[i].thread, &err), &err);
    }
    for (int32_t i = 0; i < 2; i++)
        mr_thread_join(out[i].thread);
    assert_true(mr_clock_now_ns() - start_ns < LIMIT_S * MR_NS_PER_S);
}

static void expect_figures(const end e[2]) {
    expect_ok(e[0].status, &e[0].err);
    expect_ok(e[1].status, &e[1].err);
    assert_true(e[LINK_SENDER].latency_s > 0 && isfinite(e[LINK_SENDER].latency_s));
    assert_true(e[LINK_SENDER].second_bytes > 0 && isfinite(e[LINK_SENDER].second_bytes));
    assert_true(e[LINK_RECEIVER].latency_s == 0 && e[LINK_RECEIVER].second_bytes == 0);
}

static void test_figures(void **state) {
    (void)state;
    link_rig r;
    end e[2];
    link_rig_prepare(NULL);
    link_rig_open(&r);
    for (uint32_t round = 0; round < 2; round++) {
        measure(&r, MR_WAY_HOST, 10 + round, 0, e);
        expect_figures(e);
        measure(&r, MR_WAY_NCCL, 20 + round, 0, e);
        expect_figures(e);
        assert_int_equal(fake_nccl_get_counts().n_live, 0);
    }
    assert_true(fake_nccl_get_counts().n_transfers > 0);
    link_rig_close(&r);
}

/* --- A clock that stands ----------------------------------------------------------------------------------------- */

static const mr_channel_ops *channel_ops;
static bool waits_pass;

/* Moves the clock on. Threads of both ends call it. */
static void pass(int64_t ns) {
    static mr_mutex lock = {PTHREAD_MUTEX_INITIALIZER};
    mr_mutex_lock(&lock);
    mr_clock_freeze(mr_clock_now_ns() + ns);
    mr_mutex_unlock(&lock);
}

static int64_t real_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * MR_NS_PER_S + now.tv_nsec;
}

/* Waits in real time for as long as the deadline is ahead of the clock. */
static mr_status wait_really(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    int64_t left_ns = deadline_ns - mr_clock_now_ns(), until_ns = real_ns() + left_ns;
    mr_status status = channel_ops->wait(ch, until_ns, err);
    if (waits_pass && real_ns() >= until_ns)
        pass(left_ns);
    return status;
}

/* Stops the clock, ahead of real time. It moves on by whole waits for the channel, or not at all, so that deadlines of
 * what the machine itself has to do never come, however busy it is. */
static void stop_clock(link_rig *r, bool moves_by_waits) {
    static mr_channel_ops ops;
    channel_ops = r->at[0].channel->ops;
    ops = *channel_ops;
    ops.wait = wait_really;
    for (int32_t i = 0; i < 2; i++)
        r->at[i].channel->ops = &ops;
    waits_pass = moves_by_waits;
    mr_clock_freeze(mr_clock_now_ns() + 3600 * MR_NS_PER_S);
}

/* The delays of a way are in its figures, and nothing else is, on a clock that only the delays move. */
static void test_a_slow_way(void **state) {
    (void)state;
    enum { DELAY_NS = 20000000 };
    link_rig r;
    end nccl[2], host[2];
    link_rig_prepare(&(fake_nccl_options){.delay_us = DELAY_NS / 1000, .pass = pass});
    link_rig_open(&r);
    stop_clock(&r, false);
    measure(&r, MR_WAY_NCCL, 1, 0, nccl);
    measure(&r, MR_WAY_HOST, 2, 0, host);
    mr_clock_freeze(-1);
    expect_figures(nccl);
    expect_figures(host);
    assert_int_equal(llround(nccl[LINK_SENDER].latency_s * 1e9), 2 * DELAY_NS); /* one at each end */
    assert_int_equal(llround(host[LINK_SENDER].latency_s * 1e9), 1);            /* in place of 0 */
    link_rig_close(&r);
}

/* Whichever end fails first, both say why. */
static void expect_both_fail(const end e[2], const char *words) {
    for (int32_t i = 0; i < 2; i++) {
        assert_true(e[i].status == MR_E_UNSUPPORTED || e[i].status == MR_E_IO);
        expect_says(e[i].err.text, words);
    }
}

/* Both ends end with an error, and the next measurement works. */
static void expect_failure(const char *fail, int32_t at, const char *words) {
    link_rig r;
    end e[2];
    link_rig_prepare(&(fake_nccl_options){.fail = fail, .fail_at = at});
    link_rig_open(&r);
    stop_clock(&r, true);
    measure(&r, MR_WAY_NCCL, 1, 0, e);
    assert_int_not_equal(e[0].status, MR_OK);
    assert_int_not_equal(e[1].status, MR_OK);
    assert_true(strstr(e[0].err.text, words) || strstr(e[1].err.text, words));
    measure(&r, MR_WAY_HOST, 2, 0, e);
    expect_figures(e);
    mr_clock_freeze(-1);
    link_rig_close(&r);
}

static void test_ways_that_fail(void **state) {
    (void)state;
    expect_failure("comm_init_rank_config", 1, "system error (chosen)");
    expect_failure("connect", 2, "system error (chosen)");
    expect_failure("send", 4, "system error (chosen)");
    expect_failure("recv", 7, "system error (chosen)");
    expect_failure("transfer", 9, "remote error");
}

static void test_a_way_that_is_not_there(void **state) {
    (void)state;
    link_rig r;
    end e[2];
    link_rig_prepare(&(fake_nccl_options){.missing = true});
    link_rig_open(&r);
    measure(&r, MR_WAY_NCCL, 1, 0, e);
    expect_both_fail(e, "no NCCL");
    measure(&r, MR_WAY_POINTERS, 2, 0, e);
    expect_both_fail(e, "does not take addresses of devices");
    link_rig_close(&r);
}

static void test_told_to_end(void **state) {
    (void)state;
    link_rig r;
    end e[2];
    link_rig_prepare(NULL);
    link_rig_open(&r);
    stop_clock(&r, true);
    for (int32_t at = 1; at < 400; at = at * 3) {
        measure(&r, MR_WAY_NCCL, (uint32_t)at, at, e);
        for (int32_t i = 0; i < 2; i++)
            assert_true(e[i].status == MR_OK || e[i].status == MR_E_CANCELLED || e[i].status == MR_E_IO ||
                        e[i].status == MR_E_UNSUPPORTED);
        assert_true(at > 1 || e[0].status == MR_E_CANCELLED || e[1].status == MR_E_CANCELLED);
        assert_int_equal(fake_nccl_get_counts().n_live, 0);
    }
    mr_clock_freeze(-1);
    link_rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures), cmocka_unit_test(test_a_slow_way), cmocka_unit_test(test_ways_that_fail),
        cmocka_unit_test(test_a_way_that_is_not_there), cmocka_unit_test(test_told_to_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
