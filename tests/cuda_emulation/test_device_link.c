/* Links between emulated GPUs: the same rows arrive in their order by every way, with any delays. What fails at one end
 * makes both take the way through the hosts. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"
#include "tests/cuda_emulation/device_link_rig.h"
#include "tests/support/test.h"

enum { N_STEPS = 23 };

static void check_way(mr_way way, int32_t max_delay_us, int32_t n_asks) {
    link_rig r;
    mr_err err = {0};
    link_rig_prepare(&(fake_nccl_options){.max_delay_us = max_delay_us, .n_asks = n_asks});
    link_rig_open(&r);
    expect_ok(link_rig_link(&r, &(link_rig_wish){.way = way, .must = true}, &err), &err);
    for (int32_t i = 0; i < 2; i++) {
        assert_int_equal(mr_device_link_way(r.at[i].link), way);
        assert_string_equal(mr_device_link_why(r.at[i].link), "");
    }
    link_rig_carry(&r, N_STEPS);
    assert_int_equal(fake_nccl_get_counts().n_transfers, way == MR_WAY_NCCL ? 2 * (N_STEPS + 1) : 0);
    link_rig_close(&r);
}

static void test_rows_by_host(void **state) {
    (void)state;
    check_way(MR_WAY_HOST, 0, 0);
}

static void test_rows_by_nccl(void **state) {
    (void)state;
    check_way(MR_WAY_NCCL, 0, 0);
    check_way(MR_WAY_NCCL, 3000, 0);
    check_way(MR_WAY_NCCL, 100, 3);
}

/* While NCCL has not put a send into the queue, its frame does not go out, and nothing is asked of the receiver. */
static void test_a_frame_follows_its_send(void **state) {
    (void)state;
    link_rig r;
    mr_err err = {0};
    bool did;
    link_rig_prepare(&(fake_nccl_options){.n_asks = INT32_MAX});
    link_rig_open(&r);
    expect_ok(link_rig_link(&r, &(link_rig_wish){.way = MR_WAY_NCCL}, &err), &err);
    assert_true(link_rig_send(&r.at[LINK_SENDER], 0));
    for (int32_t i = 0; i < 20; i++)
        expect_ok(mr_device_link_poll(r.at[i % 2].link, &did, &err), &err);
    assert_false(mr_device_link_is_busy(r.at[LINK_RECEIVER].link));
    link_rig_close(&r);
}

static void test_a_channel_without_pointers(void **state) {
    (void)state;
    link_rig r;
    mr_err err = {0};
    link_rig_prepare(NULL);
    link_rig_open(&r);
    expect_ok(link_rig_link(&r, &(link_rig_wish){.way = MR_WAY_POINTERS}, &err), &err);
    assert_int_equal(mr_device_link_way(r.at[LINK_SENDER].link), MR_WAY_HOST);
    expect_says(mr_device_link_why(r.at[LINK_SENDER].link), "does not take addresses of devices");
    link_rig_carry(&r, 5);
    link_rig_close(&r);
}

/* Both ends fall back, say why, and carry all rows; or fail, if they must not. */
static void check_fallback(const fake_nccl_options *nccl, const link_rig_wish *base, const char *why) {
    for (int must = 0; must < 2; must++) {
        link_rig r;
        mr_err err = {0};
        link_rig_wish w = *base;
        link_rig_prepare(nccl);
        link_rig_open(&r);
        w.way = MR_WAY_NCCL;
        w.must = must == 1;
        mr_status status = link_rig_link(&r, &w, &err);
        if (must) {
            expect_fails(status, MR_E_UNSUPPORTED, &err, why);
        } else {
            expect_ok(status, &err);
            for (int32_t i = 0; i < 2; i++) {
                assert_int_equal(mr_device_link_way(r.at[i].link), MR_WAY_HOST);
                expect_says(mr_device_link_why(r.at[i].link), why);
            }
            link_rig_carry(&r, 5);
        }
        link_rig_close(&r);
    }
}

static void test_what_keeps_nccl_from_a_hop(void **state) {
    (void)state;
    check_fallback(&(fake_nccl_options){.missing = true}, &(link_rig_wish){0}, "no NCCL");
    check_fallback(NULL, &(link_rig_wish){.has_no_device = true}, "no device for links");
    check_fallback(NULL, &(link_rig_wish){.same_device = true}, "both stages are on one device");
    check_fallback(NULL, &(link_rig_wish){.version = 22000}, "versions 22809 and 22000");
}

/* Each call fails once, at either end, before the first step. */
static void test_failures_while_the_ends_connect(void **state) {
    (void)state;
    static const struct {
        const char *fail;
        int32_t n;
        const char *why;
    } calls[] = {{"get_unique_id", 1, "make an id"},    {"comm_init_rank_config", 2, "connect two devices"},
                 {"connect", 2, "connect two devices"}, {"comm_get_async_error", 2, "state of a connection"},
                 {"send", 1, "send activations"},       {"recv", 1, "receive activations"},
                 {"transfer", 2, "activations"}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int32_t at = 1; at <= calls[i].n; at++)
            check_fallback(&(fake_nccl_options){.fail = calls[i].fail, .fail_at = at, .max_delay_us = 100},
                           &(link_rig_wish){0}, calls[i].why);
}

/* After the first step, a failure ends the stage. */
static void test_failures_of_transfers(void **state) {
    (void)state;
    for (int32_t which = 0; which < 2; which++) {
        link_rig r;
        mr_err err = {0};
        link_rig_prepare(&(fake_nccl_options){.fail = which == LINK_SENDER ? "send" : "recv", .fail_at = 3});
        link_rig_open(&r);
        expect_ok(link_rig_link(&r, &(link_rig_wish){.way = MR_WAY_NCCL}, &err), &err);
        link_rig_carry(&r, 1);
        mr_link_rows rows;
        bool is_free = false, did;
        const mr_frame f = link_rig_frame(1);
        expect_ok(mr_device_link_reserve(r.at[LINK_SENDER].link, &rows, &is_free, &err), &err);
        mr_device_link_keep(r.at[LINK_SENDER].link);
        mr_status status = mr_device_link_send(r.at[LINK_SENDER].link, &f, &err);
        if (which == LINK_SENDER) {
            expect_fails(status, MR_E_IO, &err, "send activations: system error");
            expect_ok(mr_device_link_poll(r.at[LINK_RECEIVER].link, &did, &err), &err); /* no frame went ahead of it */
            assert_false(mr_device_link_is_busy(r.at[LINK_RECEIVER].link));
        } else {
            expect_ok(status, &err);
            expect_ok(mr_device_link_poll(r.at[LINK_SENDER].link, &did, &err), &err);
            link_rig_expect_error(&r.at[LINK_RECEIVER], MR_E_IO, "receive activations: system error");
        }
        link_rig_close(&r);
    }
}

/* A frame that lies about its rows is refused before anything is received. */
static void test_frames_that_lie(void **state) {
    (void)state;
    static const struct {
        mr_frame frame;
        const char *why;
    } lies[] = {{{.rows = LINK_ROWS + 1, .row_bytes = LINK_COLUMNS * 4, .by_device = true}, "on a hop of at most"},
                {{.rows = 0, .row_bytes = LINK_COLUMNS * 4, .by_device = true}, "0 bytes of rows"},
                {{.rows = 0, .row_bytes = 0}, "go by host"}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        link_rig r;
        mr_err err = {0};
        link_rig_prepare(NULL);
        link_rig_open(&r);
        expect_ok(link_rig_link(&r, &(link_rig_wish){.way = MR_WAY_NCCL}, &err), &err);
        link_rig_send_frame_alone(&r, &lies[i].frame);
        link_rig_expect_error(&r.at[LINK_RECEIVER], MR_E_PROTOCOL, lies[i].why);
        link_rig_close(&r);
    }
}

/* Each allocation fails once: an error, or the way through the hosts, and nothing is left. */
static void test_allocations(void **state) {
    (void)state;
    bool is_whole = false;
    for (int n = 0; !is_whole; n++) {
        link_rig r;
        mr_err err = {0};
        link_rig_prepare(NULL);
        link_rig_open(&r);
        for (int32_t i = 0; i < 2; i++) { /* the emulation needs its threads */
            void *unused;
            expect_ok(link_rig_queue(r.at[i].be, &unused, &err), &err);
        }
        mr_mem_fail_at(n);
        mr_status status = link_rig_link(&r, &(link_rig_wish){.way = MR_WAY_NCCL}, &err);
        mr_mem_fail_at(-1);
        is_whole = status == MR_OK && mr_device_link_way(r.at[LINK_SENDER].link) == MR_WAY_NCCL;
        if (status != MR_OK)
            assert_int_equal(status, MR_E_NO_MEMORY);
        else if (is_whole)
            assert_true(n > 8);
        assert_true(n < 40);
        link_rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_by_host),
        cmocka_unit_test(test_rows_by_nccl),
        cmocka_unit_test(test_a_frame_follows_its_send),
        cmocka_unit_test(test_a_channel_without_pointers),
        cmocka_unit_test(test_what_keeps_nccl_from_a_hop),
        cmocka_unit_test(test_failures_while_the_ends_connect),
        cmocka_unit_test(test_failures_of_transfers),
        cmocka_unit_test(test_frames_that_lie),
        cmocka_unit_test(test_allocations),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    link_rig_prepare(NULL); /* the streams of the last test end */
    return failed;
}
