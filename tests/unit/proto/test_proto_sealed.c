/* Frames with the key of a link: what somebody without the secret sends, what comes a second time and what is missing
 * is refused, and the link goes on. Reading the secret of a launch. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/clock.h"
#include "engine/base/le.h"
#include "engine/base/mem.h"
#include "proto/channel_local.h"
#include "proto/link.h"
#include "tests/support/test.h"
#include "tests/support/test_log.h"

enum { SLOTS = 4, PAYLOAD = 100, FRAME = MR_FRAME_BYTES + PAYLOAD, MAX_REQUESTS = 64, EPOCH = 5, AT_COUNTER = 40 };

static const mr_secret SECRET = {.is_set = true, .bytes = {1, 2, 3}}, OTHER = {.is_set = true, .bytes = {1, 2, 4}},
                       NONE = {0};

/* Endpoint 0 sends to 1. */
typedef struct pair {
    mr_local_hub *hub;
    mr_channel *a, *b;
    mr_outbox *out;
    mr_inbox *in;
} pair;

static void pair_init(pair *p, uint32_t epoch, const mr_secret *of_a, const mr_secret *of_b) {
    *p = (pair){0};
    assert_int_equal(mr_local_hub_create(2, MAX_REQUESTS, &p->hub, NULL), MR_OK);
    assert_int_equal(mr_local_channel_open(p->hub, 0, &p->a, NULL), MR_OK);
    assert_int_equal(mr_local_channel_open(p->hub, 1, &p->b, NULL), MR_OK);
    p->a->secret = of_a;
    p->b->secret = of_b;
    assert_int_equal(mr_outbox_create(p->a, 1, MR_LINK_TOKENS, epoch, SLOTS, PAYLOAD, &p->out, NULL), MR_OK);
    assert_int_equal(mr_inbox_create(p->b, 0, MR_LINK_TOKENS, epoch, SLOTS, PAYLOAD, &p->in, NULL), MR_OK);
}

static void pair_deinit(pair *p) {
    mr_inbox_destroy(p->in);
    mr_outbox_destroy(p->out);
    mr_channel_destroy(p->b);
    mr_channel_destroy(p->a);
    mr_local_hub_destroy(p->hub);
}

/* Sends a message of PAYLOAD bytes that are all step. out_frame [FRAME]: a copy of what went over the channel; may be
 * NULL. */
static void put(mr_outbox *out, uint8_t step, uint8_t *out_frame) {
    uint8_t *payload = NULL;
    assert_int_equal(mr_outbox_reserve(out, &payload, NULL), MR_OK);
    assert_non_null(payload);
    memset(payload, step, PAYLOAD);
    const mr_frame f = {.step = step, .payload_bytes = PAYLOAD};
    assert_int_equal(mr_outbox_send(out, &f, NULL), MR_OK);
    if (out_frame)
        memcpy(out_frame, payload - MR_FRAME_BYTES, FRAME);
}

static void send_raw(pair *p, uint32_t epoch, const uint8_t *frame) {
    mr_channel_request r = 0;
    mr_completion c = {.done = false};
    assert_int_equal(mr_channel_post_send(p->a, 1, mr_link_tag(MR_LINK_TOKENS, epoch), frame, FRAME, &r, NULL), MR_OK);
    assert_int_equal(mr_channel_test(p->a, r, &c, NULL), MR_OK);
    assert_true(c.done);
}

/* Takes the oldest message, which has this step. */
static void expect_step(pair *p, int step) {
    mr_frame f = {0};
    mr_err err = {0};
    const uint8_t *payload = NULL;
    expect_ok(mr_inbox_peek(p->in, &f, &payload, &err), &err);
    assert_true((payload != NULL) == (step >= 0));
    if (!payload)
        return;
    assert_int_equal(f.step, step);
    for (size_t i = 0; i < PAYLOAD; i++)
        assert_int_equal(payload[i], step);
    assert_int_equal(mr_inbox_release(p->in, NULL), MR_OK);
}

static void expect_refused(pair *p, const char *words) {
    mr_frame f;
    mr_err err = {0};
    const uint8_t *payload = NULL;
    expect_fails(mr_inbox_peek(p->in, &f, &payload, &err), MR_E_PROTOCOL, &err, words);
    expect_says(err.text, "message from endpoint 0");
}

/* --- Links ------------------------------------------------------------------------------------------------------- */

static void test_messages_pass(void **state) {
    (void)state;
    uint8_t first[FRAME], second[FRAME];
    pair p;
    pair_init(&p, EPOCH, &SECRET, &SECRET);
    for (int i = 0; i < 100; i++) {
        put(p.out, 7, i == 0 ? first : second);
        expect_step(&p, 7);
    }
    assert_int_equal(mr_load_le64(first + AT_COUNTER), 0);
    assert_int_equal(mr_load_le64(second + AT_COUNTER), 99);
    assert_memory_not_equal(first + MR_FRAME_BYTES - 8, second + MR_FRAME_BYTES - 8, 8);
    pair_deinit(&p);
}

/* Every bit of a frame counts, and the right frame passes after all the wrong ones. */
static void test_changed_frames_are_refused(void **state) {
    (void)state;
    uint8_t frame[FRAME];
    pair from, p;
    pair_init(&from, EPOCH, &SECRET, &SECRET);
    put(from.out, 3, frame);
    pair_init(&p, EPOCH, &SECRET, &SECRET);
    for (size_t i = 0; i < FRAME; i++) {
        frame[i] ^= (uint8_t)(1 << i % 8);
        send_raw(&p, EPOCH, frame);
        mr_frame f;
        mr_err err;
        const uint8_t *payload = NULL;
        if (mr_inbox_peek(p.in, &f, &payload, &err) != MR_E_PROTOCOL)
            fail_msg("byte %zu may change", i);
        frame[i] ^= (uint8_t)(1 << i % 8);
    }
    frame[FRAME - 1] ^= 1;
    send_raw(&p, EPOCH, frame);
    expect_refused(&p, "frame 0 was changed on the way, or comes from somebody without the launch secret");
    frame[FRAME - 1] ^= 1;
    send_raw(&p, EPOCH, frame);
    expect_step(&p, 3);
    pair_deinit(&p);
    pair_deinit(&from);
}

/* Frames of a rank with another secret, or with none. */
static void test_strangers_are_refused(void **state) {
    (void)state;
    const mr_secret *const theirs[] = {&OTHER, &NONE, NULL};
    for (int i = 0; i < 3; i++) {
        uint8_t frame[FRAME];
        pair stranger, p;
        pair_init(&stranger, EPOCH, theirs[i], theirs[i]);
        put(stranger.out, 3, frame);
        pair_init(&p, EPOCH, &SECRET, &SECRET);
        send_raw(&p, EPOCH, frame);
        expect_refused(&p, "without the launch secret");
        put(p.out, 4, NULL);
        expect_step(&p, 4);
        pair_deinit(&p);
        pair_deinit(&stranger);
    }
}

/* Frames of the same secret, but of another link: another epoch, kind or direction. */
static void test_frames_of_other_links_are_refused(void **state) {
    (void)state;
    const mr_frame_link links[] = {{.kind = MR_FRAME_TOKENS, .epoch = EPOCH, .from = 0, .to = 1},
                                   {.kind = MR_FRAME_LOGITS, .epoch = EPOCH, .from = 0, .to = 1},
                                   {.kind = MR_FRAME_TOKENS, .epoch = EPOCH + 1, .from = 0, .to = 1},
                                   {.kind = MR_FRAME_TOKENS, .epoch = EPOCH, .from = 1, .to = 0},
                                   {.kind = MR_FRAME_TOKENS, .epoch = EPOCH, .from = 0, .to = 2}};
    pair p;
    pair_init(&p, EPOCH, &SECRET, &SECRET);
    for (size_t i = sizeof links / sizeof links[0]; i-- > 0;) {
        uint8_t frame[FRAME] = {0};
        const mr_frame f = {.kind = MR_FRAME_TOKENS, .epoch = EPOCH, .payload_bytes = PAYLOAD};
        mr_frame_key *key = mr_frame_key_create(&SECRET, &links[i]);
        mr_frame_seal_with(&f, key, frame);
        send_raw(&p, EPOCH, frame);
        if (i > 0)
            expect_refused(&p, "without the launch secret");
        else
            expect_step(&p, 0);
        mr_frame_key_destroy(key);
    }
    pair_deinit(&p);
}

/* Frames that were heard and are sent again are dropped, and logged once. */
static void test_replayed_frames_are_dropped(void **state) {
    (void)state;
    uint8_t frames[3][FRAME];
    test_log log;
    pair p;
    pair_init(&p, EPOCH, &SECRET, &SECRET);
    test_log_begin(&log);
    for (uint8_t i = 0; i < 3; i++) {
        put(p.out, i, frames[i]);
        expect_step(&p, i);
        for (uint8_t k = 0; k <= i; k++)
            send_raw(&p, EPOCH, frames[k]);
        expect_step(&p, -1);
    }
    put(p.out, 9, NULL);
    expect_step(&p, 9);
    test_log_end(&log);
    assert_int_equal(log.n_lines, 1);
    expect_says(log.text, "message from endpoint 0: a frame that has come before was refused");
    pair_deinit(&p);
}

/* A frame that overtakes another one. */
static void test_a_missing_frame_is_noticed(void **state) {
    (void)state;
    uint8_t frames[2][FRAME];
    pair from, p;
    pair_init(&from, EPOCH, &SECRET, &SECRET);
    for (uint8_t i = 0; i < 2; i++)
        put(from.out, i, frames[i]);
    pair_init(&p, EPOCH, &SECRET, &SECRET);
    send_raw(&p, EPOCH, frames[1]);
    expect_refused(&p, "frame 1 has come, but frame 0 is missing");
    send_raw(&p, EPOCH, frames[0]);
    expect_step(&p, 0);
    send_raw(&p, EPOCH, frames[1]);
    expect_step(&p, 1);
    pair_deinit(&p);
    pair_deinit(&from);
}

/* In the lobby an end of a link may be made anew. Its frames are newer than those of the former end. */
static void test_ends_of_the_lobby_come_and_go(void **state) {
    (void)state;
    uint8_t old[FRAME];
    test_log log;
    pair p;
    pair_init(&p, 0, &SECRET, &SECRET);
    put(p.out, 1, old);
    expect_step(&p, 1);
    mr_outbox_destroy(p.out);
    p.out = NULL;
    assert_int_equal(mr_outbox_create(p.a, 1, MR_LINK_TOKENS, 0, SLOTS, PAYLOAD, &p.out, NULL), MR_OK);
    put(p.out, 2, NULL);
    expect_step(&p, 2);
    test_log_begin(&log);
    send_raw(&p, 0, old);
    expect_step(&p, -1);
    test_log_end(&log);
    assert_int_equal(log.n_lines, 1);
    mr_inbox_destroy(p.in);
    p.in = NULL;
    assert_int_equal(mr_inbox_create(p.b, 0, MR_LINK_TOKENS, 0, SLOTS, PAYLOAD, &p.in, NULL), MR_OK);
    put(p.out, 3, NULL);
    expect_step(&p, 3);
    pair_deinit(&p);
}

static void test_failing_allocations(void **state) {
    (void)state;
    pair p;
    pair_init(&p, EPOCH, &SECRET, &SECRET);
    for (int n = 0; n < 2; n++) { /* the key, the ring */
        mr_outbox *out = NULL;
        mr_inbox *in = NULL;
        mr_mem_fail_at(n);
        assert_int_equal(mr_outbox_create(p.a, 1, MR_LINK_LOGITS, EPOCH, 1, 1, &out, NULL), MR_E_NO_MEMORY);
        mr_mem_fail_at(n);
        assert_int_equal(mr_inbox_create(p.b, 0, MR_LINK_LOGITS, EPOCH, 1, 1, &in, NULL), MR_E_NO_MEMORY);
        mr_mem_fail_at(-1);
        assert_null(out);
        assert_null(in);
    }
    pair_deinit(&p);
}

/* --- Secrets ----------------------------------------------------------------------------------------------------- */

static void hex_of(uint8_t first, char out[65]) {
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", (unsigned)(first + i));
}

static void test_a_secret_of_the_environment(void **state) {
    (void)state;
    char hex[80];
    mr_secret s;
    mr_err err = {0};
    unsetenv("MILLRACE_SECRET_FILE");
    unsetenv("MILLRACE_SECRET");
    expect_ok(mr_secret_find(&s, &err), &err);
    assert_false(s.is_set);
    hex_of(0xc0, hex);
    setenv("MILLRACE_SECRET", hex, 1);
    expect_ok(mr_secret_find(&s, &err), &err);
    assert_true(s.is_set && s.bytes[0] == 0xc0 && s.bytes[31] == 0xdf);
    for (int i = 0; i < 3; i++) {
        hex_of(0xc0, hex);
        strcpy(hex + (i == 0 ? 63 : i == 1 ? 64 : 30), i == 0 ? "" : i == 1 ? "0" : "g");
        setenv("MILLRACE_SECRET", hex, 1);
        expect_fails(mr_secret_find(&s, &err), MR_E_INVALID, &err, "are not 64 hexadecimal digits; hint: openssl");
        assert_null(strstr(err.text, "c0c1c2"));
    }
    unsetenv("MILLRACE_SECRET");
}

static void test_a_secret_of_a_file(void **state) {
    (void)state;
    char path[] = "/tmp/millrace-secret-XXXXXX", hex[80];
    mr_secret s;
    mr_err err = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    hex_of(5, hex);
    strcat(hex, "\n");
    assert_int_equal(write(fd, hex, strlen(hex)), strlen(hex));
    setenv("MILLRACE_SECRET_FILE", path, 1);
    expect_ok(mr_secret_find(&s, &err), &err);
    assert_true(s.is_set && s.bytes[0] == 5 && s.bytes[31] == 36);
    assert_int_equal(fchmod(fd, 0640), 0);
    expect_fails(mr_secret_find(&s, &err), MR_E_INVALID, &err, "mode 640, so that others may use it; hint: chmod 600");
    assert_false(s.is_set);
    assert_int_equal(fchmod(fd, 0600), 0);
    assert_int_equal(pwrite(fd, "\xEF\xBB\xBF", 3, 0), 3); /* a byte order mark, and CRLF at the end */
    assert_int_equal(pwrite(fd, hex, 64, 3), 64);
    assert_int_equal(pwrite(fd, "\r\n", 2, 67), 2);
    expect_ok(mr_secret_find(&s, &err), &err);
    assert_true(s.is_set && s.bytes[0] == 5 && s.bytes[31] == 36);
    assert_int_equal(pwrite(fd,
                            "\xFF\xFE"
                            "0\0",
                            4, 0),
                     4);
    expect_fails(mr_secret_find(&s, &err), MR_E_INVALID, &err, "is text in UTF-16; hint: save it as UTF-8");
    assert_int_equal(pwrite(fd, hex, 64, 0), 64);
    assert_int_equal(ftruncate(fd, 63), 0);
    expect_fails(mr_secret_find(&s, &err), MR_E_INVALID, &err, "does not have 64 hexadecimal digits");
    close(fd);
    unlink(path);
    expect_fails(mr_secret_find(&s, &err), MR_E_IO, &err, "cannot be read");
    setenv("MILLRACE_SECRET_FILE", "/tmp", 1);
    expect_fails(mr_secret_find(&s, &err), MR_E_INVALID, &err, "/tmp is not a file");
    unsetenv("MILLRACE_SECRET_FILE");
}

/* HMAC-SHA-256 of "label\0data" with a key of 32 bytes 0x0b. Printed by:
 *   printf 'label\0data' | openssl dgst -sha256 -mac HMAC -macopt hexkey:0b0b...0b */
static void test_derived_secrets(void **state) {
    (void)state;
    static const char wanted[] = "2dae47c2bd3cbc826974bd30029a1509430dae320f24f35b751d93996e4bcede";
    mr_secret key = {.is_set = true}, got;
    char hex[65];
    memset(key.bytes, 0x0b, sizeof key.bytes);
    got = mr_secret_derive(&key, "label", (const uint8_t *)"data", 4);
    for (int i = 0; i < MR_SECRET_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", got.bytes[i]);
    assert_string_equal(hex, wanted);
    assert_true(got.is_set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_pass),
        cmocka_unit_test(test_changed_frames_are_refused),
        cmocka_unit_test(test_strangers_are_refused),
        cmocka_unit_test(test_frames_of_other_links_are_refused),
        cmocka_unit_test(test_replayed_frames_are_dropped),
        cmocka_unit_test(test_a_missing_frame_is_noticed),
        cmocka_unit_test(test_ends_of_the_lobby_come_and_go),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_a_secret_of_the_environment),
        cmocka_unit_test(test_a_secret_of_a_file),
        cmocka_unit_test(test_derived_secrets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
