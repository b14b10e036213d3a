// SPDX-License-Identifier: Apache-2.0
/* Order, matching, sizes and waits of a channel without faults. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "test_channel.h"

enum { TAG = 5, TAG_GO = 6, LARGE_BYTES = 8 << 20 };

/* A byte to peer, or from it: "the step before this has happened". */
static bool say(endpoint *e, int32_t peer) {
    CHECK(e, send_now(e->ch, peer, TAG_GO, "!", 1) == MR_OK);
    return true;
}
static bool hear(endpoint *e, int32_t peer) {
    char c = 0;
    CHECK(e, recv_now(e->ch, peer, TAG_GO, &c, 1, NULL) == MR_OK && c == '!');
    return true;
}

/* 0 sends numbers, many at once; 1 has a few receives posted at any time. */
static bool order(endpoint *e) {
    enum { N = 512, DEPTH = 8 };
    uint32_t numbers[DEPTH];
    mr_channel_request requests[DEPTH] = {0};
    for (uint32_t i = 0; i < N + DEPTH; i++) {
        mr_channel_request *r = &requests[i % DEPTH];
        uint32_t *number = &numbers[i % DEPTH];
        if (i >= DEPTH) {
            size_t bytes = 0;
            CHECK(e, finish(e->ch, *r, &bytes) == MR_OK && bytes == sizeof *number && *number == i - DEPTH);
        }
        *number = e->self == 0 ? i : UINT32_MAX;
        if (i < N && e->self == 0)
            CHECK(e, mr_channel_post_send(e->ch, 1, TAG, number, sizeof *number, r, NULL) == MR_OK);
        else if (i < N)
            CHECK(e, mr_channel_post_recv(e->ch, 0, TAG, number, sizeof *number, r, NULL) == MR_OK);
    }
    return true;
}

/* 0 sends on many tags; 1 takes them in the reverse order. */
static bool many_tags(endpoint *e) {
    enum { N = 50 };
    uint32_t numbers[N];
    mr_channel_request requests[N];
    for (uint32_t i = 0; i < N && e->self == 0; i++) {
        numbers[i] = 1000 + i;
        uint32_t tag = i * (MR_CHANNEL_MAX_TAG / (N - 1));
        CHECK(e, mr_channel_post_send(e->ch, 1, tag, &numbers[i], sizeof numbers[i], &requests[i], NULL) == MR_OK);
    }
    for (uint32_t i = 0; i < N && e->self == 0; i++)
        CHECK(e, finish(e->ch, requests[i], NULL) == MR_OK);
    for (uint32_t i = N; i-- > 0 && e->self == 1;) {
        uint32_t got = 0, tag = i * (MR_CHANNEL_MAX_TAG / (N - 1));
        CHECK(e, recv_now(e->ch, 0, tag, &got, sizeof got, NULL) == MR_OK && got == 1000 + i);
    }
    return true;
}

/* 1 and 2 send to 0 with the same tag; each receive gets the peer that it names. */
static bool peers_are_apart(endpoint *e) {
    int32_t got[2] = {-1, -1};
    if (e->self != 0)
        CHECK(e, send_now(e->ch, 0, TAG, &e->self, sizeof e->self) == MR_OK);
    for (int32_t peer = 2; peer > 0 && e->self == 0; peer--)
        CHECK(e, recv_now(e->ch, peer, TAG, &got[peer - 1], sizeof got[0], NULL) == MR_OK && got[peer - 1] == peer);
    return true;
}

/* One message that is posted before its receive, or after it. */
static bool large(endpoint *e, bool send_first) {
    uint8_t *data = mr_alloc(LARGE_BYTES);
    mr_channel_request r = 0;
    size_t bytes = LARGE_BYTES;
    bool ok = true;
    CHECK(e, data);
    if (e->self == 0) {
        fill_pattern(data, LARGE_BYTES, e->seed, send_first);
        ok = ok && (send_first || hear(e, 1));
        ok = ok && mr_channel_post_send(e->ch, 1, TAG, data, LARGE_BYTES, &r, NULL) == MR_OK;
        ok = ok && (!send_first || say(e, 1));
    } else {
        ok = ok && (!send_first || hear(e, 0));
        ok = ok && mr_channel_post_recv(e->ch, 0, TAG, data, LARGE_BYTES, &r, NULL) == MR_OK;
        ok = ok && (send_first || say(e, 0));
    }
    ok = ok && finish(e->ch, r, &bytes) == MR_OK && bytes == LARGE_BYTES;
    ok = ok && has_pattern(data, LARGE_BYTES, e->seed, send_first);
    mr_free(data);
    CHECK(e, ok);
    return true;
}

static bool large_send_first(endpoint *e) {
    return large(e, true);
}

static bool large_receive_first(endpoint *e) {
    return large(e, false);
}

/* Empty messages are messages; a buffer may be larger than what comes. */
static bool small_and_empty(endpoint *e) {
    char buffer[8] = "-------";
    size_t bytes = 99;
    if (e->self == 0) {
        CHECK(e, send_now(e->ch, 1, TAG, NULL, 0) == MR_OK);
        CHECK(e, send_now(e->ch, 1, TAG, "abc", 3) == MR_OK);
        CHECK(e, send_now(e->ch, 1, TAG, "", 0) == MR_OK);
        return true;
    }
    CHECK(e, recv_now(e->ch, 0, TAG, NULL, 0, &bytes) == MR_OK && bytes == 0);
    CHECK(e, recv_now(e->ch, 0, TAG, buffer, sizeof buffer, &bytes) == MR_OK && bytes == 3);
    CHECK(e, memcmp(buffer, "abc----", 8) == 0);
    CHECK(e, recv_now(e->ch, 0, TAG, buffer, sizeof buffer, &bytes) == MR_OK && bytes == 0);
    CHECK(e, memcmp(buffer, "abc----", 8) == 0);
    return true;
}

static bool to_itself(endpoint *e) {
    mr_channel_request first = 0, second = 0;
    char a = 0, b = 0;
    CHECK(e, mr_channel_post_recv(e->ch, e->self, TAG, &a, 1, &first, NULL) == MR_OK);
    CHECK(e, send_now(e->ch, e->self, TAG, "a", 1) == MR_OK);
    CHECK(e, mr_channel_post_send(e->ch, e->self, TAG, "b", 1, &second, NULL) == MR_OK);
    CHECK(e, recv_now(e->ch, e->self, TAG, &b, 1, NULL) == MR_OK);
    CHECK(e, finish(e->ch, first, NULL) == MR_OK && finish(e->ch, second, NULL) == MR_OK);
    CHECK(e, a == 'a' && b == 'b');
    return true;
}

/* A wait ends at its deadline, and not for ever before it. */
static bool wait_deadline(endpoint *e) {
    int64_t start = mr_clock_now_ns(), deadline = start + 20 * MR_NS_PER_MS;
    CHECK(e, mr_channel_wait(e->ch, start - MR_NS_PER_S, NULL) == MR_OK);
    CHECK(e, mr_channel_wait(e->ch, 0, NULL) == MR_OK);
    while (mr_clock_now_ns() < deadline)
        CHECK(e, mr_channel_wait(e->ch, deadline, NULL) == MR_OK);
    CHECK(e, mr_clock_now_ns() < start + 30 * MR_NS_PER_S);
    return true;
}

/* A completion before the wait ends the wait too: no wake-up is lost between test and wait. */
static bool wait_after_completion(endpoint *e) {
    char c = 0;
    mr_channel_request sending = 0, receiving = 0;
    int64_t start = mr_clock_now_ns();
    for (int i = 0; i < 100; i++) {
        CHECK(e, mr_channel_post_recv(e->ch, e->self, TAG, &c, 1, &receiving, NULL) == MR_OK);
        CHECK(e, mr_channel_post_send(e->ch, e->self, TAG, "x", 1, &sending, NULL) == MR_OK);
        CHECK(e, mr_channel_wait(e->ch, start + 50 * MR_NS_PER_S, NULL) == MR_OK);
        CHECK(e, finish(e->ch, receiving, NULL) == MR_OK && finish(e->ch, sending, NULL) == MR_OK);
    }
    CHECK(e, mr_clock_now_ns() < start + 40 * MR_NS_PER_S);
    return true;
}

static void wake_main(void *ctx) {
    mr_channel_wake(ctx);
}

/* A wake from another thread ends the wait that it meets, or the next one. */
static bool wake(endpoint *e) {
    for (int i = 0; i < 50; i++) {
        mr_thread *waker = NULL;
        int64_t start = mr_clock_now_ns();
        CHECK(e, mr_thread_create("waker", 0, wake_main, e->ch, &waker, NULL) == MR_OK);
        if (i % 2)
            mr_thread_join(waker);
        mr_status status = mr_channel_wait(e->ch, start + 50 * MR_NS_PER_S, NULL);
        if (i % 2 == 0)
            mr_thread_join(waker);
        CHECK(e, status == MR_OK && mr_clock_now_ns() < start + 40 * MR_NS_PER_S);
    }
    return true;
}

/* Tests do not block, and say nothing of what has not come. */
static bool test_does_not_block(endpoint *e) {
    char c = 0;
    mr_channel_request r = 0;
    mr_completion done = {.done = true, .bytes = 7};
    CHECK(e, mr_channel_post_recv(e->ch, 0, TAG, &c, 1, &r, NULL) == MR_OK && r != 0);
    CHECK(e, mr_channel_test(e->ch, r, &done, NULL) == MR_OK && !done.done && done.bytes == 0);
    mr_channel_cancel(e->ch, r);
    CHECK(e, mr_channel_cancel(e->ch, 0));
    return true;
}

const channel_test channel_basic_tests[] = {
    {"messages of a tag arrive in order", order, 2},
    {"tags are independent of each other", many_tags, 2},
    {"peers are independent of each other", peers_are_apart, 3},
    {"8 MiB, posted before the receive", large_send_first, 2},
    {"8 MiB, posted after the receive", large_receive_first, 2},
    {"small and empty messages", small_and_empty, 2},
    {"an endpoint may send to itself", to_itself, 1},
    {"wait ends at its deadline", wait_deadline, 1},
    {"wait ends after a completion before it", wait_after_completion, 1},
    {"wake ends a wait", wake, 1},
    {"test does not block", test_does_not_block, 1},
    {NULL, NULL, 0},
};
