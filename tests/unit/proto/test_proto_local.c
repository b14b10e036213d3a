// SPDX-License-Identifier: Apache-2.0
/* Cases of channels inside one process only; tests/conformance/test_channel*.c has the rest. */

#include <string.h>

#include "engine/base/clock.h"
#include "proto/channel_local.h"
#include "tests/support/test.h"

enum { MANY = 70, TAG = 1 };

static void test_arguments(void **state) {
    (void)state;
    mr_local_hub *hub = NULL;
    mr_channel *ch = NULL, *again = NULL;
    mr_err err = {0};
    assert_int_equal(mr_local_hub_create(0, 1, &hub, NULL), MR_E_INVALID);
    assert_int_equal(mr_local_hub_create(1, 0, &hub, NULL), MR_E_INVALID);
    assert_int_equal(mr_local_hub_create(INT32_MAX, 1, &hub, NULL), MR_E_INVALID);
    assert_int_equal(mr_local_hub_create(1, INT32_MAX, &hub, NULL), MR_E_INVALID);
    assert_int_equal(mr_local_hub_create(2, 1, &hub, NULL), MR_OK);
    assert_int_equal(mr_local_channel_open(hub, 2, &ch, NULL), MR_E_INVALID);
    assert_int_equal(mr_local_channel_open(hub, -1, &ch, NULL), MR_E_INVALID);
    assert_int_equal(mr_local_channel_open(hub, 1, &ch, NULL), MR_OK);
    expect_fails(mr_local_channel_open(hub, 1, &again, &err), MR_E_INVALID, &err, "endpoint 1");
    mr_channel_destroy(ch);
    assert_int_equal(mr_local_channel_open(hub, 1, &again, NULL), MR_E_INVALID);
    mr_channel_destroy(NULL);
    mr_local_hub_destroy(hub);
    mr_local_hub_destroy(NULL);
}

/* Two hubs know nothing of each other. */
static void test_two_hubs(void **state) {
    (void)state;
    mr_local_hub *hubs[2];
    mr_channel *ch[2];
    mr_channel_request send = 0, recv = 0;
    mr_completion c = {.done = true};
    char byte = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mr_local_hub_create(1, 2, &hubs[i], NULL), MR_OK);
        assert_int_equal(mr_local_channel_open(hubs[i], 0, &ch[i], NULL), MR_OK);
    }
    assert_int_equal(mr_channel_post_send(ch[0], 0, TAG, "x", 1, &send, NULL), MR_OK);
    assert_int_equal(mr_channel_post_recv(ch[1], 0, TAG, &byte, 1, &recv, NULL), MR_OK);
    assert_int_equal(mr_channel_test(ch[1], recv, &c, NULL), MR_OK);
    assert_false(c.done);
    for (int i = 0; i < 2; i++) {
        mr_channel_destroy(ch[i]);
        mr_local_hub_destroy(hubs[i]);
    }
}

static void expect_done(mr_channel *ch, mr_channel_request r) {
    mr_completion c = {.done = false};
    assert_int_equal(mr_channel_test(ch, r, &c, NULL), MR_OK);
    assert_true(c.done);
}

/* More endpoints than an endpoint has lists: each receive still gets the peer that it names, whichever comes first.
 * What is sent to an endpoint that is not open yet waits for it. */
static void many_endpoints(bool send_first) {
    mr_local_hub *hub = NULL;
    mr_channel *ch[MANY] = {NULL};
    mr_channel_request sends[MANY], recvs[MANY];
    char names[MANY], got[MANY];
    assert_int_equal(mr_local_hub_create(MANY, MANY, &hub, NULL), MR_OK);
    for (int32_t i = send_first; i < MANY; i++)
        assert_int_equal(mr_local_channel_open(hub, i, &ch[i], NULL), MR_OK);
    for (int half = 0; half < 2; half++) {
        if (half == 1 && send_first)
            assert_int_equal(mr_local_channel_open(hub, 0, &ch[0], NULL), MR_OK);
        for (int32_t k = 1; k < MANY; k++) {
            int32_t i = half ? MANY - k : k;
            names[i] = (char)i;
            if (send_first == (half == 0))
                assert_int_equal(mr_channel_post_send(ch[i], 0, TAG, &names[i], 1, &sends[i], NULL), MR_OK);
            else
                assert_int_equal(mr_channel_post_recv(ch[0], i, TAG, &got[i], 1, &recvs[i], NULL), MR_OK);
        }
    }
    for (int32_t i = 1; i < MANY; i++) {
        expect_done(ch[i], sends[i]);
        expect_done(ch[0], recvs[i]);
        assert_int_equal(got[i], i);
    }
    for (int32_t i = 0; i < MANY; i++)
        mr_channel_destroy(ch[i]);
    mr_local_hub_destroy(hub);
}

static void test_many_endpoints(void **state) {
    (void)state;
    many_endpoints(true);
    many_endpoints(false);
}

/* One event ends one wait. Without another event, the next wait lasts until its deadline. */
static void test_a_wait_does_not_spin(void **state) {
    (void)state;
    mr_local_hub *hub = NULL;
    mr_channel *ch = NULL;
    assert_int_equal(mr_local_hub_create(1, 2, &hub, NULL), MR_OK);
    assert_int_equal(mr_local_channel_open(hub, 0, &ch, NULL), MR_OK);
    for (int i = 0; i < 3; i++) {
        mr_channel_wake(ch);
        mr_channel_wake(ch);
        int64_t start = mr_clock_now_ns();
        assert_int_equal(mr_channel_wait(ch, start + 60 * MR_NS_PER_S, NULL), MR_OK);
        assert_true(mr_clock_now_ns() < start + 50 * MR_NS_PER_S);
        int64_t deadline = mr_clock_now_ns() + 5 * MR_NS_PER_MS;
        assert_int_equal(mr_channel_wait(ch, deadline, NULL), MR_OK);
        assert_true(mr_clock_now_ns() >= deadline);
    }
    mr_channel_destroy(ch);
    mr_local_hub_destroy(hub);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_two_hubs),
        cmocka_unit_test(test_many_endpoints),
        cmocka_unit_test(test_a_wait_does_not_spin),
    };
    return cmocka_run_group_tests_name("proto_local", tests, NULL, NULL);
}
