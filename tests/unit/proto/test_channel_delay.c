// SPDX-License-Identifier: Apache-2.0
/* The delays of messages, and which messages can overtake others, on a clock that stands still. The suite in
 * tests/conformance tests everything else. */
#include <string.h>

#include "engine/base/clock.h"
#include "proto/channel_local.h"
#include "tests/support/channel_delay.h"
#include "tests/support/test.h"

enum { MAX_REQUESTS = 600, N = 200 };
static const int64_t START = 1000 * MR_NS_PER_S;

typedef struct scene {
    mr_local_hub *hub;
    mr_channel *a, *b; /* channel a delays the messages that it sends to b */
} scene;

static scene open_scene(channel_delay_config config) {
    scene s;
    mr_err err;
    mr_channel *inner;
    config.max_requests = MAX_REQUESTS;
    mr_clock_freeze(START);
    expect_ok(mr_local_hub_create(2, MAX_REQUESTS, &s.hub, &err), &err);
    expect_ok(mr_local_channel_open(s.hub, 0, &inner, &err), &err);
    expect_ok(channel_delay_create(inner, &config, &s.a, &err), &err);
    expect_ok(mr_local_channel_open(s.hub, 1, &s.b, &err), &err);
    return s;
}

static void close_scene(scene *s) {
    mr_channel_destroy(s->a);
    mr_channel_destroy(s->b);
    mr_local_hub_destroy(s->hub);
    mr_clock_freeze(-1);
}

static bool is_done(mr_channel *ch, mr_channel_request r) {
    mr_completion c = {0};
    mr_err err;
    expect_ok(mr_channel_test(ch, r, &c, &err), &err);
    return c.done;
}

static mr_channel_request send(scene *s, uint32_t tag, const void *data, size_t bytes) {
    mr_channel_request r = 0;
    mr_err err;
    expect_ok(mr_channel_post_send(s->a, 1, tag, data, bytes, &r, &err), &err);
    return r;
}

static mr_channel_request receive(scene *s, uint32_t tag, void *data, size_t bytes) {
    mr_channel_request r = 0;
    mr_err err;
    expect_ok(mr_channel_post_recv(s->b, 0, tag, data, bytes, &r, &err), &err);
    return r;
}

static void test_latency(void **state) {
    (void)state;
    scene s = open_scene((channel_delay_config){.latency_ns = 5000});
    char got = 0;
    mr_channel_request in = receive(&s, 1, &got, 1), out = send(&s, 1, "x", 1);
    mr_clock_freeze(START + 4999);
    assert_false(is_done(s.a, out));
    assert_false(is_done(s.b, in));
    mr_clock_freeze(START + 5000);
    mr_channel_progress(s.a);
    assert_true(is_done(s.b, in) && is_done(s.a, out));
    assert_int_equal(got, 'x');
    close_scene(&s);
}

/* 3,000 bytes at 1 MB/s are gone after 3 ms, those after them 1 ms later. */
static void test_bandwidth(void **state) {
    (void)state;
    static char data[3000], got[3000];
    scene s = open_scene((channel_delay_config){.latency_ns = 100, .bytes_per_second = 1e6});
    mr_channel_request in[2] = {receive(&s, 1, got, sizeof got), receive(&s, 2, got, sizeof got)};
    mr_channel_request out[2] = {send(&s, 1, data, 3000), send(&s, 2, data, 1000)};
    mr_clock_freeze(START + 3 * MR_NS_PER_MS + 99);
    assert_false(is_done(s.a, out[0]));
    mr_clock_freeze(START + 3 * MR_NS_PER_MS + 100);
    assert_true(is_done(s.a, out[0]) && is_done(s.b, in[0]));
    mr_clock_freeze(START + 4 * MR_NS_PER_MS + 99);
    assert_false(is_done(s.a, out[1]));
    mr_clock_freeze(START + 4 * MR_NS_PER_MS + 100);
    assert_true(is_done(s.a, out[1]) && is_done(s.b, in[1]));
    close_scene(&s);
}

/* Messages of one tag stay in order. Messages of other tags may overtake them. */
static void test_order(void **state) {
    (void)state;
    scene s = open_scene((channel_delay_config){.latency_ns = 10, .jitter_ns = 1000, .seed = 3});
    int32_t numbers[N], got[N], n_before = 0, first_of[2] = {-1, -1};
    mr_channel_request in[N], out[N];
    for (int32_t i = 0; i < N; i++) {
        numbers[i] = i;
        in[i] = receive(&s, (uint32_t)i % 2, &got[i], sizeof got[i]);
        out[i] = send(&s, (uint32_t)i % 2, &numbers[i], sizeof numbers[i]);
    }
    bool done[N] = {false};
    for (int64_t t = 0; t <= 1010; t++) {
        mr_clock_freeze(START + t);
        mr_channel_progress(s.a);
        for (int32_t i = 0; i < N; i++) {
            if (done[i] || !is_done(s.b, in[i]))
                continue;
            done[i] = true;
            assert_int_equal(got[i], i);
            assert_true(first_of[i % 2] < i);
            n_before += first_of[1 - i % 2] < i - 1;
            first_of[i % 2] = i;
        }
    }
    for (int32_t i = 0; i < N; i++)
        assert_true(done[i] && is_done(s.a, out[i]));
    assert_true(n_before > 0);
    close_scene(&s);
}

/* After the death of a sender, messages that were sent arrive. Messages that the delay still holds do not. */
static void test_death(void **state) {
    (void)state;
    scene s = open_scene((channel_delay_config){.latency_ns = 7, .dies_after = 2});
    char got[3];
    mr_err err;
    mr_completion c;
    mr_channel_request waits = 0, r = 0;
    expect_ok(mr_channel_post_recv(s.a, 1, 9, got, 1, &waits, &err), &err);
    mr_channel_request in = receive(&s, 1, got, 1), out = send(&s, 1, "x", 1), never = receive(&s, 1, got + 1, 1);
    mr_clock_freeze(START + 7);
    assert_true(is_done(s.a, out) && is_done(s.b, in));
    assert_false(is_done(s.a, waits));
    out = send(&s, 1, "y", 1);
    assert_int_equal(mr_channel_test(s.a, out, &c, &err), MR_E_PEER_LOST);
    assert_int_equal(mr_channel_test(s.a, waits, &c, &err), MR_E_PEER_LOST);
    assert_int_equal(mr_channel_test(s.b, never, &c, &err), MR_E_PEER_LOST);
    assert_int_equal(mr_channel_wait(s.a, MR_NEVER, &err), MR_E_PEER_LOST);
    mr_channel_progress(s.a);
    mr_channel_wake(s.a);
    assert_int_equal(mr_channel_post_send(s.a, 1, 1, "z", 1, &r, &err), MR_E_PEER_LOST);
    assert_int_equal(mr_channel_post_recv(s.a, 1, 1, got, 1, &r, &err), MR_E_PEER_LOST);
    close_scene(&s);
}

/* A quarter of the messages is late, some of them twice, and none overtakes another. */
static void test_loss(void **state) {
    (void)state;
    scene s = open_scene((channel_delay_config){.latency_ns = 10, .loss = 0.25, .resend_ns = 1000, .seed = 1});
    int32_t n_late = 0, n_later = 0;
    for (int32_t i = 0; i < N; i++) {
        int32_t got = -1;
        int64_t t = 10, start = START + i * MR_NS_PER_MS;
        mr_clock_freeze(start);
        mr_channel_request in = receive(&s, 1, &got, sizeof got), out = send(&s, 1, &i, sizeof i);
        for (; t < MR_NS_PER_MS; t += 1000) {
            mr_clock_freeze(start + t - 1);
            assert_false(is_done(s.a, out));
            mr_clock_freeze(start + t);
            if (is_done(s.a, out))
                break;
        }
        assert_true(is_done(s.b, in));
        assert_int_equal(got, i);
        n_late += t > 10;
        n_later += t > 1010;
    }
    assert_in_range(n_late, N / 6, N / 3); /* 50 are expected, with a standard deviation of 6 */
    assert_in_range(n_later, 3, N / 8);
    int32_t numbers[N], got[N];
    mr_channel_request in[N], out[N];
    for (int32_t i = 0; i < N; i++) {
        numbers[i] = i;
        in[i] = receive(&s, 1, &got[i], sizeof got[i]);
        out[i] = send(&s, 1, &numbers[i], sizeof numbers[i]);
    }
    mr_clock_freeze(START + MR_NS_PER_S);
    for (int32_t i = 0; i < N; i++) {
        assert_true(is_done(s.a, out[i]) && is_done(s.b, in[i]));
        assert_int_equal(got[i], i);
    }
    close_scene(&s);
}

static void name_peer(const mr_channel *ch, int32_t peer, char out[MR_CHANNEL_NAME_BYTES]) {
    (void)ch, (void)peer;
    strcpy(out, "node7");
}

/* Names are the inner channel's, as long as there is one. */
static void test_names(void **state) {
    (void)state;
    mr_local_hub *hub;
    mr_channel *inner, *a;
    mr_channel_request r;
    mr_err err;
    char name[MR_CHANNEL_NAME_BYTES];
    expect_ok(mr_local_hub_create(2, MAX_REQUESTS, &hub, &err), &err);
    expect_ok(mr_local_channel_open(hub, 0, &inner, &err), &err);
    mr_channel_ops named = *inner->ops;
    named.peer_name = name_peer;
    inner->ops = &named;
    channel_delay_config config = {.dies_after = 1, .max_requests = MAX_REQUESTS};
    expect_ok(channel_delay_create(inner, &config, &a, &err), &err);
    assert_string_equal(mr_channel_peer_name(a, 1, name), "node7");
    expect_ok(mr_channel_post_send(a, 1, 1, "x", 1, &r, &err), &err);
    assert_string_equal(mr_channel_peer_name(a, 1, name), "endpoint 1");
    mr_channel_destroy(a);
    mr_local_hub_destroy(hub);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_latency), cmocka_unit_test(test_bandwidth),
                                       cmocka_unit_test(test_order),   cmocka_unit_test(test_loss),
                                       cmocka_unit_test(test_death),   cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
