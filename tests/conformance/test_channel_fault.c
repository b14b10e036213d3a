// SPDX-License-Identifier: Apache-2.0
/* Cancelled requests, full tables, messages that are too long, and endpoints that close. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "test_channel.h"

enum { TAG = 30, TAG_GO = 10, TAG_NEVER = 11, MIDDLE_BYTES = 8 << 20, MIDDLE_STEP_NS = 200000 };

static bool say(endpoint *e, int32_t peer, char what) {
    CHECK(e, send_now(e->ch, peer, TAG_GO, &what, 1) == MR_OK);
    return true;
}
static bool hear(endpoint *e, int32_t peer, char *out_what) {
    CHECK(e, recv_now(e->ch, peer, TAG_GO, out_what, 1, NULL) == MR_OK);
    return true;
}

/* A cancelled receive takes nothing: the message goes to the one after it. */
static bool cancel_receive(endpoint *e) {
    char a = '-', b = '-', go;
    mr_channel_request first = 0, second = 0;
    if (e->self == 0) {
        CHECK(e, hear(e, 1, &go) && send_now(e->ch, 1, TAG, "x", 1) == MR_OK);
        return true;
    }
    CHECK(e, mr_channel_post_recv(e->ch, 0, TAG, &a, 1, &first, NULL) == MR_OK);
    CHECK(e, mr_channel_post_recv(e->ch, 0, TAG, &b, 1, &second, NULL) == MR_OK);
    CHECK(e, mr_channel_cancel(e->ch, first));
    CHECK(e, say(e, 0, '1') && finish(e->ch, second, NULL) == MR_OK);
    CHECK(e, a == '-' && b == 'x');
    return true;
}

/* A cancelled send is not delivered, where the implementation can take it back. */
static bool cancel_send(endpoint *e) {
    static const char taken_back = 'a', kept = 'b'; /* may be read for as long as the process lives */
    char got = 0, cancelled = 0;
    mr_channel_request first = 0, second = 0;
    if (e->self == 0) {
        CHECK(e, mr_channel_post_send(e->ch, 1, TAG, &taken_back, 1, &first, NULL) == MR_OK);
        CHECK(e, mr_channel_post_send(e->ch, 1, TAG, &kept, 1, &second, NULL) == MR_OK);
        CHECK(e, say(e, 1, mr_channel_cancel(e->ch, first) ? 'y' : 'n'));
        CHECK(e, finish(e->ch, second, NULL) == MR_OK);
        return true;
    }
    CHECK(e, hear(e, 0, &cancelled) && recv_now(e->ch, 0, TAG, &got, 1, NULL) == MR_OK);
    if ((cancelled == 'n' || e->sends_stay) && got == 'a')
        CHECK(e, recv_now(e->ch, 0, TAG, &got, 1, NULL) == MR_OK);
    CHECK(e, got == 'b');
    return true;
}

/* A request that has been cancelled or reported is no request any more, and its slot is another one's. */
static bool stale_requests(endpoint *e) {
    char c = 0;
    mr_channel_request old = 0, fresh = 0;
    mr_completion done;
    CHECK(e, mr_channel_post_recv(e->ch, 0, TAG, &c, 1, &old, NULL) == MR_OK);
    CHECK(e, mr_channel_cancel(e->ch, old));
    for (int i = 0; i < 2 * MAX_REQUESTS; i++) {
        CHECK(e, mr_channel_post_recv(e->ch, 0, TAG, &c, 1, &fresh, NULL) == MR_OK && fresh != old);
        CHECK(e, mr_channel_test(e->ch, old, &done, NULL) == MR_E_INVALID);
        mr_channel_cancel(e->ch, old);
        CHECK(e, mr_channel_test(e->ch, fresh, &done, NULL) == MR_OK && !done.done);
        mr_channel_cancel(e->ch, fresh);
    }
    CHECK(e, mr_channel_test(e->ch, ~UINT64_C(0), &done, NULL) == MR_E_INVALID);
    return true;
}

static bool no_such_peer(endpoint *e) {
    char c = 0;
    mr_channel_request r = 77;
    mr_err err;
    CHECK(e, mr_channel_post_send(e->ch, e->n, TAG, &c, 1, &r, &err) == MR_E_INVALID);
    CHECK(e, mr_channel_post_recv(e->ch, -1, TAG, &c, 1, &r, &err) == MR_E_INVALID);
    CHECK(e, mr_channel_post_send(e->ch, 0, MR_CHANNEL_MAX_TAG + 1, &c, 1, &r, &err) == MR_E_INVALID);
    CHECK(e, r == 77 && e->ch->self == e->self && e->ch->n_peers == e->n);
    return true;
}

/* A message that is too long fails its receive alone: the sender and the next message do not notice. */
static bool too_long(endpoint *e, bool receive_first) {
    char buffer[8] = "-------", go, name[MR_CHANNEL_NAME_BYTES];
    size_t bytes = 0;
    mr_channel_request first = 0, second = 0;
    mr_completion done = {.done = false};
    mr_status status;
    mr_err err = {0};
    if (e->self == 0) {
        CHECK(e, !receive_first || hear(e, 1, &go));
        CHECK(e, mr_channel_post_send(e->ch, 1, TAG, "12345678", 8, &first, NULL) == MR_OK);
        CHECK(e, mr_channel_post_send(e->ch, 1, TAG, "12345678", 8, &second, NULL) == MR_OK);
        CHECK(e, say(e, 1, '!') && finish(e->ch, first, NULL) == MR_OK && finish(e->ch, second, NULL) == MR_OK);
        return true;
    }
    CHECK(e, receive_first || hear(e, 0, &go));
    CHECK(e, mr_channel_post_recv(e->ch, 0, TAG, buffer, 7, &first, NULL) == MR_OK);
    CHECK(e, mr_channel_post_recv(e->ch, 0, TAG, buffer, 8, &second, NULL) == MR_OK);
    CHECK(e, !receive_first || (say(e, 0, '?') && hear(e, 0, &go)));
    CHECK(e, finish(e->ch, second, &bytes) == MR_OK && bytes == 8 && memcmp(buffer, "12345678", 8) == 0);
    /* Both have their message; which of them is seen to end first is nobody's promise. */
    while ((status = mr_channel_test(e->ch, first, &done, &err)) == MR_OK && !done.done)
        CHECK(e, mr_channel_wait(e->ch, mr_clock_now_ns() + MR_NS_PER_MS, NULL) == MR_OK);
    CHECK(e, status == MR_E_PROTOCOL);
    CHECK(e, strstr(err.text, mr_channel_peer_name(e->ch, 0, name)) && strstr(err.text, " at most 7 "));
    CHECK(e, mr_channel_test(e->ch, first, &done, NULL) == MR_E_INVALID);
    return true;
}
static bool too_long_for_posted(endpoint *e) {
    return too_long(e, true);
}
static bool too_long_for_late(endpoint *e) {
    return too_long(e, false);
}

/* Fills the table of requests; the one too many is refused, and room comes with every request that ends. */
static bool all_slots_in_use(endpoint *e) {
    char buffer[MAX_REQUESTS], extra;
    mr_channel_request requests[MAX_REQUESTS], one_more = 0;
    mr_completion done = {.done = false};
    for (int i = 0; i < MAX_REQUESTS; i++)
        CHECK(e, mr_channel_post_recv(e->ch, 0, TAG, &buffer[i], 1, &requests[i], NULL) == MR_OK);
    CHECK(e, mr_channel_post_recv(e->ch, 0, TAG, &extra, 1, &one_more, NULL) == MR_E_NO_MEMORY);
    CHECK(e, mr_channel_post_send(e->ch, 0, TAG, "x", 1, &one_more, NULL) == MR_E_NO_MEMORY && one_more == 0);
    CHECK(e, mr_channel_cancel(e->ch, requests[MAX_REQUESTS - 1]));
    CHECK(e, mr_channel_post_send(e->ch, 0, TAG, "x", 1, &one_more, NULL) == MR_OK);
    CHECK(e, finish(e->ch, one_more, NULL) == MR_OK && finish(e->ch, requests[0], NULL) == MR_OK);
    CHECK(e, buffer[0] == 'x');
    for (int i = 1; i < MAX_REQUESTS - 1; i++) {
        CHECK(e, mr_channel_test(e->ch, requests[i], &done, NULL) == MR_OK && !done.done);
        CHECK(e, mr_channel_cancel(e->ch, requests[i]));
    }
    return true;
}

/* 1 sends one message and goes. What it delivered stays; what waits for it, or is sent to it later, is lost. 2
 * lives. */
static bool peer_lost(endpoint *e) {
    char early = 0, never = 0, go;
    mr_channel_request delivered = 0, waiting = 0, r = 0;
    mr_err err = {0};
    if (e->self == 1) {
        CHECK(e, hear(e, 0, &go) && send_now(e->ch, 0, TAG, "m", 1) == MR_OK);
        /* Never received: it goes with the endpoint. */
        CHECK(e, mr_channel_post_send(e->ch, 0, TAG_NEVER, "z", 1, &r, NULL) == MR_OK);
        mr_channel_destroy(e->ch);
        e->ch = NULL;
        return true;
    }
    if (e->self == 2) {
        CHECK(e, hear(e, 0, &go) && say(e, 0, go));
        return true;
    }
    CHECK(e, mr_channel_post_recv(e->ch, 1, TAG, &early, 1, &delivered, NULL) == MR_OK);
    CHECK(e, mr_channel_post_recv(e->ch, 1, TAG, &never, 1, &waiting, NULL) == MR_OK);
    CHECK(e, say(e, 1, '!'));
    CHECK(e, finish(e->ch, waiting, NULL) == MR_E_PEER_LOST);
    CHECK(e, finish(e->ch, delivered, NULL) == MR_OK && early == 'm' && never == 0);
    CHECK(e, send_now(e->ch, 1, TAG, "x", 1) == MR_E_PEER_LOST);
    CHECK(e, recv_now(e->ch, 1, TAG, &never, 1, NULL) == MR_E_PEER_LOST);
    mr_status status = mr_channel_post_send(e->ch, 1, TAG, "x", 1, &r, &err);
    mr_completion done;
    CHECK(e, (status == MR_OK ? mr_channel_test(e->ch, r, &done, &err) : status) == MR_E_PEER_LOST);
    CHECK(e, strstr(err.text, "endpoint 1"));
    CHECK(e, say(e, 2, '?') && hear(e, 2, &go) && go == '?');
    return true;
}

/* A send that waits for its receive is lost with the receiver. */
static bool receiver_lost(endpoint *e) {
    char go;
    mr_channel_request r = 0;
    if (e->self == 1) {
        CHECK(e, hear(e, 0, &go));
        mr_channel_destroy(e->ch);
        e->ch = NULL;
        return true;
    }
    CHECK(e, mr_channel_post_send(e->ch, 1, TAG_NEVER, "x", 1, &r, NULL) == MR_OK);
    CHECK(e, say(e, 1, '!'));
    CHECK(e, finish(e->ch, r, NULL) == MR_E_PEER_LOST);
    return true;
}

/* One round of the test below, at the side that cancels after a while: then the buffer is its own, whatever the other
 * side is doing. *out_ours: it may be freed. */
static bool cancel_late(endpoint *e, uint8_t *data, uint32_t round, bool sender, bool *out_ours) {
    int32_t peer = 1 - e->self;
    char go;
    mr_channel_request r = 0;
    mr_completion c = {.done = false};
    int64_t until = mr_clock_now_ns();
    memset(data, 's', MIDDLE_BYTES);
    if (sender)
        CHECK(e, mr_channel_post_send(e->ch, peer, TAG + round, data, MIDDLE_BYTES, &r, NULL) == MR_OK);
    else
        CHECK(e, mr_channel_post_recv(e->ch, peer, TAG + round, data, MIDDLE_BYTES, &r, NULL) == MR_OK);
    CHECK(e, say(e, peer, '!'));
    until += round * MIDDLE_STEP_NS;
    while (!c.done && mr_clock_now_ns() < until)
        CHECK(e, mr_channel_test(e->ch, r, &c, NULL) == MR_OK);
    *out_ours = c.done || mr_channel_cancel(e->ch, r);
    if (*out_ours)
        memset(data, 'x', MIDDLE_BYTES);
    CHECK(e, hear(e, peer, &go));
    for (size_t i = 0; i < MIDDLE_BYTES && *out_ours; i++)
        CHECK(e, data[i] == 'x');
    return true;
}

/* The other side: posts what matches; a message that comes is whole. */
static bool cancel_late_peer(endpoint *e, uint8_t *data, uint32_t round, bool sender, bool *out_ours) {
    int32_t peer = 1 - e->self;
    char go;
    mr_channel_request r = 0;
    mr_completion c = {.done = false};
    memset(data, 'r', MIDDLE_BYTES);
    CHECK(e, hear(e, peer, &go));
    if (sender)
        CHECK(e, mr_channel_post_send(e->ch, peer, TAG + round, data, MIDDLE_BYTES, &r, NULL) == MR_OK);
    else
        CHECK(e, mr_channel_post_recv(e->ch, peer, TAG + round, data, MIDDLE_BYTES, &r, NULL) == MR_OK);
    CHECK(e, say(e, peer, '!'));
    CHECK(e, mr_channel_test(e->ch, r, &c, NULL) == MR_OK);
    *out_ours = c.done || mr_channel_cancel(e->ch, r);
    CHECK(e, *out_ours || sender || e->sends_stay);
    for (size_t i = 0; i < MIDDLE_BYTES && c.done && !sender; i++)
        CHECK(e, data[i] == 's');
    return true;
}

static bool cancel_in_the_middle(endpoint *e) {
    bool ok = true;
    for (uint32_t i = 0; i < 24 && ok; i++) {
        uint8_t *data = mr_alloc(MIDDLE_BYTES);
        bool sender = (i % 2 == 0) == (e->self == 0), ours = true;
        ok = data && (e->self == 0 ? cancel_late(e, data, 2 + i / 2, sender, &ours)
                                   : cancel_late_peer(e, data, 2 + i / 2, sender, &ours));
        if (ours)
            mr_free(data);
    }
    CHECK(e, ok);
    return true;
}

/* One round of the test below: a long message with a tag of its own, finished or cancelled at once. */
static mr_status start_and_leave(endpoint *e, uint32_t round, bool to_the_end) {
    enum { BYTES = 1 << 20 };
    mr_channel_request r = 0;
    mr_status status;
    uint32_t tag = 100 + round;
    bool ours = true, sender = ((uint32_t)e->self + round) % 2 == 0;
    uint8_t *data = mr_alloc(BYTES);
    if (!data)
        return MR_E_NO_MEMORY;
    if (sender)
        status = mr_channel_post_send(e->ch, 1 - e->self, tag, data, BYTES, &r, NULL);
    else
        status = mr_channel_post_recv(e->ch, 1 - e->self, tag, data, BYTES, &r, NULL);
    if (status == MR_OK && to_the_end)
        status = finish(e->ch, r, NULL);
    else if (status == MR_OK)
        ours = mr_channel_cancel(e->ch, r);
    if (ours)
        mr_free(data);
    return status;
}

/* Endpoints cancel and go while long messages are under way: whoever owns a buffer frees it right after. */
static bool leave_in_the_middle(endpoint *e) {
    enum { N = 80 };
    for (uint32_t i = 0; i < N; i++) {
        mr_status status = start_and_leave(e, i, i % 4 == 3);
        if (e->self == 0 && i == N - 1)
            CHECK(e, status == MR_E_PEER_LOST);
        else
            CHECK(e, status == MR_OK || (i >= N - 4 && status == MR_E_PEER_LOST));
        if (e->self == 1 && i == N - 4)
            break;
    }
    mr_channel_destroy(e->ch);
    e->ch = NULL;
    return true;
}

const channel_test channel_cancel_tests[] = {
    {"a cancelled receive takes no message", cancel_receive, 2},
    {"a cancelled send is not delivered", cancel_send, 2},
    {"stale requests are refused", stale_requests, 1},
    {"no such peer or tag", no_such_peer, 2},
    {"a message that is too long for a receive before it", too_long_for_posted, 2},
    {"a message that is too long for a receive after it", too_long_for_late, 2},
    {"all request slots in use", all_slots_in_use, 1},
    {"requests that are cancelled in the middle", cancel_in_the_middle, 2},
    {NULL, NULL, 0},
};

const channel_test channel_lost_tests[] = {
    {"a lost peer", peer_lost, 3},
    {"a lost receiver", receiver_lost, 2},
    {"endpoints that leave in the middle", leave_in_the_middle, 2},
    {NULL, NULL, 0},
};
