/* A peer that is lost in any state of a link between emulated GPUs: the other end gives up in time, and nothing is
 * left. */
// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda_emulation/device_link_rig.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

enum { ABORT_HANGS = 70 }; /* exit status */
static const int64_t LOSS_LIMIT_NS = 3 * MR_NS_PER_S;
#if MR_TEST_TSAN
static const int64_t EXIT_NS = 2 * MR_NS_PER_S; /* ThreadSanitizer sleeps before a process ends */
#else
static const int64_t EXIT_NS = 0;
#endif

/* The states in which a peer may be lost. */
typedef enum loss {
    LOSS_BEFORE_OFFER,
    LOSS_IN_CONNECT,
    LOSS_IDLE,
    LOSS_WITH_SEND,   /* the receiver is lost while a send is in the queue */
    LOSS_WITH_RECV,   /* the sender is lost while a recv is in the queue */
    LOSS_IN_TRANSFER, /* either end, after half of the bytes */
    LOSSES
} loss;

/* Brings both ends into the state. */
static void reach(link_rig *r, loss state, int32_t lost) {
    mr_err err = {0};
    bool did;
    const link_rig_wish w = {.way = MR_WAY_NCCL};
    expect_ok(link_rig_end(r, 1 - lost, &w, &err), &err);
    expect_ok(mr_device_link_poll(r->at[1 - lost].link, &did, &err), &err);
    if (state == LOSS_BEFORE_OFFER)
        return;
    expect_ok(link_rig_end(r, lost, &w, &err), &err);
    for (int32_t i = 0; state == LOSS_IN_CONNECT && i < 6; i++)
        expect_ok(mr_device_link_poll(r->at[i % 2].link, &did, &err), &err);
    if (state == LOSS_IN_CONNECT)
        return;
    expect_ok(link_rig_agree(r, &err), &err);
    if (state == LOSS_WITH_SEND || state == LOSS_IN_TRANSFER)
        assert_true(link_rig_send(&r->at[LINK_SENDER], 0));
    const mr_frame alone = {.rows = 1, .row_bytes = LINK_COLUMNS * 4, .by_device = true};
    if (state == LOSS_WITH_RECV)
        link_rig_send_frame_alone(r, &alone);
    int64_t limit_ns = mr_clock_now_ns() + LINK_LIMIT_NS;
    while ((state == LOSS_WITH_RECV || state == LOSS_IN_TRANSFER) &&
           !mr_device_link_is_busy(r->at[LINK_RECEIVER].link)) {
        expect_ok(mr_device_link_poll(r->at[LINK_SENDER].link, &did, &err), &err);
        expect_ok(mr_device_link_poll(r->at[LINK_RECEIVER].link, &did, &err), &err);
        assert_true(mr_clock_now_ns() < limit_ns);
    }
}

/* In the trial of the ends, two transfers are counted; the next one stands still. */
static void prepare_loss(loss state) {
    link_rig_prepare(&(fake_nccl_options){.max_delay_us = 100, .halt_at = state == LOSS_IN_TRANSFER ? 3 : 0});
}

static bool is_possible(loss state, int32_t lost) {
    return !(state == LOSS_WITH_SEND && lost == LINK_SENDER) && !(state == LOSS_WITH_RECV && lost == LINK_RECEIVER);
}

/* The peer goes away without a word but for its end of the channel. The other end gives up, and nothing is left. */
static void test_losses(void **state) {
    (void)state;
    for (int32_t s = 0; s < LOSSES; s++)
        for (int32_t lost = 0; lost < 2; lost++) {
            link_rig r;
            if (!is_possible((loss)s, lost))
                continue;
            prepare_loss((loss)s);
            link_rig_open(&r);
            reach(&r, (loss)s, lost);
            int64_t start_ns = mr_clock_now_ns();
            link_rig_stop_end(&r.at[lost]);
            link_rig_stop_end(&r.at[1 - lost]);
            assert_true(mr_clock_now_ns() - start_ns < LOSS_LIMIT_NS);
            if (s >= LOSS_WITH_SEND)
                assert_true(fake_nccl_get_counts().n_cut > 0);
            link_rig_close(&r);
        }
}

/* The channel says that the sender is gone: the receiver returns an error by itself, and not by a deadline. Where
 * nothing is on its way, it does so only when rows are wanted. */
static void test_a_lost_peer_is_noticed(void **state) {
    (void)state;
    static const loss states[] = {LOSS_BEFORE_OFFER, LOSS_IN_CONNECT, LOSS_IDLE, LOSS_WITH_RECV};
    for (size_t s = 0; s < sizeof states / sizeof *states; s++) {
        link_rig r;
        mr_err err = {0};
        mr_link_rows rows;
        mr_frame f;
        bool did, is_here = false;
        prepare_loss(states[s]);
        link_rig_open(&r);
        reach(&r, states[s], LINK_SENDER);
        link_rig_stop_end(&r.at[LINK_SENDER]);
        int64_t start_ns = mr_clock_now_ns();
        if (states[s] == LOSS_IDLE) {
            expect_ok(mr_device_link_poll(r.at[LINK_RECEIVER].link, &did, &err), &err);
            expect_fails(mr_device_link_peek(r.at[LINK_RECEIVER].link, &f, &rows, &is_here, &err), MR_E_PEER_LOST, &err,
                         "endpoint 0 is gone");
        } else {
            link_rig_expect_error(&r.at[LINK_RECEIVER], MR_E_PEER_LOST, "endpoint 0 is gone");
        }
        assert_true(mr_clock_now_ns() - start_ns < LOSS_LIMIT_NS);
        link_rig_close(&r);
    }
}

/* An abort that hangs ends the process in time, with a message. */
static void test_an_abort_that_hangs(void **state) {
    (void)state;
    int pipe_ends[2], status = 0;
    char text[512] = "";
    assert_int_equal(pipe(pipe_ends), 0);
    link_rig_prepare(NULL); /* streams of the tests before end here: a child has no threads */
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        link_rig r;
        dup2(pipe_ends[1], STDERR_FILENO);
        link_rig_prepare(&(fake_nccl_options){.abort_hangs = true});
        link_rig_open(&r);
        reach(&r, LOSS_WITH_SEND, LINK_RECEIVER);
        assert_int_equal(write(STDERR_FILENO, "!", 1), 1);
        mr_device_link_stop(r.at[LINK_SENDER].link);
        _exit(0);
    }
    close(pipe_ends[1]);
    assert_int_equal(read(pipe_ends[0], text, 1), 1); /* the abort begins */
    int64_t start_ns = mr_clock_now_ns();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(mr_clock_now_ns() - start_ns < LOSS_LIMIT_NS + EXIT_NS);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), ABORT_HANGS);
    assert_true(read(pipe_ends[0], text, sizeof text - 1) > 0);
    expect_says(text, "NCCL does not give up a connection to a lost rank in 2 s, this process ends");
    close(pipe_ends[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_a_lost_peer_is_noticed),
        cmocka_unit_test(test_an_abort_that_hangs),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    link_rig_prepare(NULL); /* the streams of the last test end */
    return failed;
}
