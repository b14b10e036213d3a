/* Links: order, back pressure, and faults of a peer. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/mem.h"
#include "proto/channel_local.h"
#include "proto/link.h"
#include "tests/support/test.h"

enum { SLOTS = 3, PAYLOAD = 100, MAX_REQUESTS = 32, EPOCH = 5 };

/* Two endpoints in one thread: 0 sends to 1. */
typedef struct pair {
    mr_local_hub *hub;
    mr_channel *a, *b;
    mr_outbox *out;
    mr_inbox *in;
} pair;

static void pair_init(pair *p) {
    *p = (pair){0};
    assert_int_equal(mr_local_hub_create(2, MAX_REQUESTS, &p->hub, NULL), MR_OK);
    assert_int_equal(mr_local_channel_open(p->hub, 0, &p->a, NULL), MR_OK);
    assert_int_equal(mr_local_channel_open(p->hub, 1, &p->b, NULL), MR_OK);
    assert_int_equal(mr_outbox_create(p->a, 1, MR_LINK_TOKENS, EPOCH, SLOTS, PAYLOAD, &p->out, NULL), MR_OK);
    assert_int_equal(mr_inbox_create(p->b, 0, MR_LINK_TOKENS, EPOCH, SLOTS, PAYLOAD, &p->in, NULL), MR_OK);
}

static void pair_deinit(pair *p) {
    mr_inbox_destroy(p->in);
    mr_outbox_destroy(p->out);
    mr_channel_destroy(p->b);
    mr_channel_destroy(p->a);
    mr_local_hub_destroy(p->hub);
}

/* Sends a message of PAYLOAD bytes that are all step; false while the link takes none. */
static bool put(mr_outbox *out, uint8_t step) {
    uint8_t *payload = NULL, *again = NULL;
    assert_int_equal(mr_outbox_reserve(out, &payload, NULL), MR_OK);
    if (!payload)
        return false;
    assert_int_equal((uintptr_t)payload % 64, 0);
    assert_int_equal(mr_outbox_reserve(out, &again, NULL), MR_OK);
    assert_ptr_equal(payload, again);
    memset(payload, step, PAYLOAD);
    const mr_frame f = {.step = step, .payload_bytes = PAYLOAD};
    assert_int_equal(mr_outbox_send(out, &f, NULL), MR_OK);
    return true;
}

/* The step of the oldest message, -1 when there is none. */
static int peek(mr_inbox *in) {
    mr_frame f = {0};
    const uint8_t *payload = NULL;
    assert_int_equal(mr_inbox_peek(in, &f, &payload, NULL), MR_OK);
    if (!payload)
        return -1;
    assert_int_equal((uintptr_t)payload % 64, 0);
    assert_int_equal(f.kind, MR_FRAME_TOKENS);
    assert_int_equal(f.epoch, EPOCH);
    assert_int_equal(f.payload_bytes, PAYLOAD);
    for (size_t i = 0; i < PAYLOAD; i++)
        assert_int_equal(payload[i], (uint8_t)f.step);
    return (int)f.step;
}

static int take(mr_inbox *in) {
    int step = peek(in);
    assert_int_equal(peek(in), step); /* the same message until it is released */
    assert_int_equal(mr_inbox_release(in, NULL), MR_OK);
    return step;
}

static bool flushed(mr_outbox *out) {
    bool all = false;
    assert_int_equal(mr_outbox_flushed(out, &all, NULL), MR_OK);
    return all;
}

static void test_messages_come_in_order(void **state) {
    (void)state;
    pair p;
    pair_init(&p);
    assert_int_equal(take(p.in), -1);
    for (int i = 0; i < 200; i += 2) {
        assert_true(put(p.out, (uint8_t)i) && put(p.out, (uint8_t)(i + 1)));
        assert_int_equal(take(p.in), i);
        assert_int_equal(take(p.in), i + 1);
        assert_int_equal(take(p.in), -1);
    }
    assert_true(flushed(p.out));
    pair_deinit(&p);
}

/* If both rings are full, reserve returns no slot until the other side releases a message. */
static void test_back_pressure(void **state) {
    (void)state;
    pair p;
    pair_init(&p);
    uint8_t sent = 0, received = 0;
    while (put(p.out, sent))
        sent++;
    assert_int_equal(sent, 2 * SLOTS);
    assert_false(flushed(p.out));
    for (int round = 0; round < 10; round++) {
        assert_false(put(p.out, sent));
        assert_int_equal(take(p.in), received++);
        assert_true(put(p.out, sent++));
    }
    while (peek(p.in) >= 0)
        assert_int_equal(take(p.in), received++);
    assert_int_equal(received, sent);
    assert_true(flushed(p.out));
    pair_deinit(&p);
}

/* The buffer that reserve returns now; NULL: none. */
static uint8_t *reserved(mr_outbox *out) {
    uint8_t *payload = NULL;
    assert_int_equal(mr_outbox_reserve(out, &payload, NULL), MR_OK);
    return payload;
}

/* Kept buffers are free for the link's user until they are sent, and go out in the order in which they were kept. */
static void test_kept_buffers(void **state) {
    (void)state;
    pair p;
    pair_init(&p);
    for (uint8_t round = 0; round < 5 * SLOTS; round++) {
        uint8_t *kept[MR_OUTBOX_KEPT];
        for (int i = 0; i < MR_OUTBOX_KEPT; i++) {
            kept[i] = reserved(p.out);
            assert_non_null(kept[i]);
            assert_true(i == 0 || kept[i] != kept[i - 1]);
            mr_outbox_keep(p.out);
        }
        uint8_t *third = reserved(p.out);
        assert_non_null(third);
        for (int i = MR_OUTBOX_KEPT - 1; i >= 0; i--) /* filled in any order */
            memset(kept[i], 3 * round + i, PAYLOAD);
        memset(third, 3 * round + MR_OUTBOX_KEPT, PAYLOAD);
        for (uint64_t i = 0; i < 3; i++) {
            const mr_frame f = {.step = 3 * round + i, .payload_bytes = PAYLOAD};
            assert_int_equal(mr_outbox_send(p.out, &f, NULL), MR_OK);
        }
        for (int i = 0; i < 3; i++)
            assert_int_equal(take(p.in), 3 * round + i);
    }
    assert_true(flushed(p.out));
    pair_deinit(&p);
}

/* While the other side takes nothing, a kept buffer counts as one of the slots, and no reserve returns it. */
static void test_kept_buffers_take_slots(void **state) {
    (void)state;
    pair p;
    pair_init(&p);
    for (uint8_t i = 0; i < SLOTS; i++)
        assert_true(put(p.out, i)); /* the slots of the inbox are full now */
    for (uint8_t i = 0; i < SLOTS - 1; i++)
        assert_true(put(p.out, (uint8_t)(SLOTS + i)));
    assert_non_null(reserved(p.out));
    mr_outbox_keep(p.out);
    assert_null(reserved(p.out));
    assert_int_equal(take(p.in), 0);
    assert_non_null(reserved(p.out));
    pair_deinit(&p);
}

/* Sends bytes as they are on the tag of the link. */
static void send_raw(pair *p, const void *data, size_t bytes) {
    mr_channel_request r = 0;
    mr_completion c = {.done = false};
    assert_int_equal(mr_channel_post_send(p->a, 1, mr_link_tag(MR_LINK_TOKENS, EPOCH), data, bytes, &r, NULL), MR_OK);
    assert_int_equal(mr_channel_test(p->a, r, &c, NULL), MR_OK);
    assert_true(c.done);
}

static void test_other_epochs_are_dropped(void **state) {
    (void)state;
    pair p;
    pair_init(&p);
    uint8_t buffer[MR_FRAME_BYTES];
    /* Epochs with the same low bits have the same tag. */
    const mr_frame stale = {.kind = MR_FRAME_TOKENS, .epoch = EPOCH + 4096, .step = 9};
    assert_int_equal(mr_link_tag(MR_LINK_TOKENS, EPOCH + 4096), mr_link_tag(MR_LINK_TOKENS, EPOCH));
    mr_frame_seal(&stale, buffer);
    for (int round = 0; round < 4; round++) {
        send_raw(&p, buffer, sizeof buffer);
        send_raw(&p, buffer, sizeof buffer);
        assert_true(put(p.out, 1));
        assert_int_equal(take(p.in), 1);
    }
    /* As many stale frames as the ring has slots. No message is delivered, and the link continues to work. */
    for (int i = 0; i < SLOTS; i++)
        send_raw(&p, buffer, sizeof buffer);
    assert_int_equal(take(p.in), -1);
    assert_true(put(p.out, 2));
    assert_int_equal(take(p.in), 2);
    pair_deinit(&p);
}

static void expect_malformed(pair *p, const char *words) {
    mr_frame f;
    mr_err err = {0};
    const uint8_t *payload = NULL;
    assert_int_equal(mr_inbox_peek(p->in, &f, &payload, &err), MR_E_PROTOCOL);
    if (!strstr(err.text, "endpoint 0") || !strstr(err.text, words))
        fail_msg("\"%s\" does not name endpoint 0 and \"%s\"", err.text, words);
}

static void test_malformed_frames_name_the_peer(void **state) {
    (void)state;
    pair p;
    pair_init(&p);
    uint8_t buffer[MR_FRAME_BYTES + PAYLOAD + 1] = {0};
    const mr_frame f = {.kind = MR_FRAME_REPORT, .epoch = EPOCH};
    mr_frame_seal(&f, buffer);
    for (int round = 0; round < 3; round++) {
        send_raw(&p, "nonsense", 8);
        send_raw(&p, buffer, MR_FRAME_BYTES);
        send_raw(&p, buffer, sizeof buffer);
        expect_malformed(&p, "8 bytes");
        expect_malformed(&p, "kind 5");
        expect_malformed(&p, "157 bytes");
        assert_true(put(p.out, 3));
        assert_int_equal(take(p.in), 3);
    }
    pair_deinit(&p);
}

/* Messages that arrived before the sender left can still be read. Then every call reports the loss. */
static void test_lost_sender(void **state) {
    (void)state;
    pair p;
    pair_init(&p);
    mr_frame f;
    mr_err err;
    const uint8_t *payload = NULL;
    assert_true(put(p.out, 1) && put(p.out, 2));
    mr_outbox_destroy(p.out);
    p.out = NULL;
    mr_channel_destroy(p.a);
    p.a = NULL;
    assert_int_equal(take(p.in), 1);
    assert_int_equal(take(p.in), 2);
    for (int i = 0; i < 2 * SLOTS; i++) {
        expect_fails(mr_inbox_peek(p.in, &f, &payload, &err), MR_E_PEER_LOST, &err, "endpoint 0");
        assert_int_equal(mr_inbox_release(p.in, NULL), MR_OK);
    }
    pair_deinit(&p);
}

static void test_lost_receiver(void **state) {
    (void)state;
    pair p;
    pair_init(&p);
    uint8_t *payload = NULL;
    bool all = false;
    const mr_frame f = {.payload_bytes = 1};
    for (uint8_t i = 0; i < SLOTS + 1; i++)
        assert_true(put(p.out, i)); /* the last message waits until a receive is posted */
    assert_int_equal(mr_outbox_reserve(p.out, &payload, NULL), MR_OK);
    mr_inbox_destroy(p.in);
    p.in = NULL;
    mr_channel_destroy(p.b);
    p.b = NULL;
    assert_int_equal(mr_outbox_send(p.out, &f, NULL), MR_E_PEER_LOST);
    assert_int_equal(mr_outbox_reserve(p.out, &payload, NULL), MR_E_PEER_LOST);
    assert_int_equal(mr_outbox_flushed(p.out, &all, NULL), MR_E_PEER_LOST);
    pair_deinit(&p);
}

/* The waiting send alone tells of the loss. */
static void test_lost_receiver_is_seen_by_reserve(void **state) {
    (void)state;
    pair p;
    pair_init(&p);
    uint8_t *payload = NULL;
    while (put(p.out, 1))
        continue;
    mr_inbox_destroy(p.in);
    p.in = NULL;
    mr_channel_destroy(p.b);
    p.b = NULL;
    assert_int_equal(mr_outbox_reserve(p.out, &payload, NULL), MR_E_PEER_LOST);
    assert_null(payload);
    pair_deinit(&p);
}

static void test_misuse_is_refused(void **state) {
    (void)state;
    pair p;
    pair_init(&p);
    mr_inbox *in = NULL;
    mr_outbox *out = NULL;
    uint8_t *payload = NULL;
    mr_frame f = {.payload_bytes = 1};
    assert_int_equal(mr_inbox_create(p.b, 2, MR_LINK_LOGITS, 1, 1, 1, &in, NULL), MR_E_INVALID);
    assert_int_equal(mr_inbox_create(p.b, 0, MR_LINK_LOGITS, 1, 0, 1, &in, NULL), MR_E_INVALID);
    assert_int_equal(mr_outbox_create(p.a, -1, MR_LINK_LOGITS, 1, 1, 1, &out, NULL), MR_E_INVALID);
    assert_int_equal(mr_outbox_create(p.a, 1, MR_LINK_LOGITS, 1, 2, SIZE_MAX / 2, &out, NULL), MR_E_NO_MEMORY);
    assert_int_equal(mr_outbox_create(p.a, 1, MR_LINK_LOGITS, 1, 1, SIZE_MAX - 1, &out, NULL), MR_E_NO_MEMORY);
    assert_int_equal(mr_outbox_send(p.out, &f, NULL), MR_E_INVALID); /* sent without a reservation */
    assert_int_equal(mr_outbox_reserve(p.out, &payload, NULL), MR_OK);
    f.payload_bytes = PAYLOAD + 1;
    assert_int_equal(mr_outbox_send(p.out, &f, NULL), MR_E_INVALID);
    /* The number of rows does not match the bytes of the payload. */
    assert_int_equal(mr_outbox_create(p.a, 1, MR_LINK_LOGITS, 1, 1, PAYLOAD, &out, NULL), MR_OK);
    assert_int_equal(mr_outbox_reserve(out, &payload, NULL), MR_OK);
    f = (mr_frame){.rows = 2, .row_bytes = 4, .payload_bytes = 9};
    assert_int_equal(mr_outbox_send(out, &f, NULL), MR_E_INVALID);
    f.payload_bytes = 8;
    assert_int_equal(mr_outbox_send(out, &f, NULL), MR_OK);
    mr_outbox_destroy(out);
    mr_inbox_destroy(NULL);
    mr_outbox_destroy(NULL);
    pair_deinit(&p);
}

/* Uses up the requests of ch; returns how many they were. */
static int32_t exhaust(mr_channel *ch, mr_channel_request *requests, char *byte) {
    int32_t n = 0;
    while (mr_channel_post_recv(ch, 0, 1, byte, 1, &requests[n], NULL) == MR_OK)
        n++;
    return n;
}

/* A channel without free requests delays a link, and breaks nothing. */
static void test_full_channel(void **state) {
    (void)state;
    pair p;
    pair_init(&p);
    mr_channel_request requests[MAX_REQUESTS];
    mr_inbox *more = NULL;
    mr_frame f;
    mr_err err;
    char byte;
    const uint8_t *payload = NULL;
    assert_true(put(p.out, 1) && put(p.out, 2) && put(p.out, 3) && put(p.out, 4));
    int32_t n = exhaust(p.b, requests, &byte);
    assert_int_equal(mr_inbox_create(p.b, 0, MR_LINK_LOGITS, 1, 2, 1, &more, NULL), MR_E_NO_MEMORY);
    assert_int_equal(take(p.in), 1);
    /* Other receives use up all requests before the peeked message is released. */
    assert_int_equal(peek(p.in), 2);
    n += exhaust(p.b, requests + n, &byte);
    assert_int_equal(mr_inbox_release(p.in, &err), MR_E_NO_MEMORY);
    assert_int_equal(peek(p.in), 2);
    mr_channel_cancel(p.b, requests[--n]);
    assert_int_equal(take(p.in), 2);
    assert_int_equal(take(p.in), 3);
    assert_int_equal(take(p.in), 4);
    assert_int_equal(mr_inbox_peek(p.in, &f, &payload, NULL), MR_OK);
    assert_null(payload);
    pair_deinit(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_come_in_order),
        cmocka_unit_test(test_back_pressure),
        cmocka_unit_test(test_kept_buffers),
        cmocka_unit_test(test_kept_buffers_take_slots),
        cmocka_unit_test(test_other_epochs_are_dropped),
        cmocka_unit_test(test_malformed_frames_name_the_peer),
        cmocka_unit_test(test_lost_sender),
        cmocka_unit_test(test_lost_receiver),
        cmocka_unit_test(test_lost_receiver_is_seen_by_reserve),
        cmocka_unit_test(test_misuse_is_refused),
        cmocka_unit_test(test_full_channel),
    };
    return cmocka_run_group_tests_name("proto_link", tests, NULL, NULL);
}
