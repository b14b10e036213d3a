/* The layout of a frame's header. Every flipped bit, wrong length and wrong field is refused. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/le.h"
#include "proto/frame.h"
#include "proto/limits.h"
#include "tests/support/test.h"

enum { ROWS = 3, ROW_BYTES = 20, PAYLOAD_BYTES = ROWS * ROW_BYTES, BYTES = MR_FRAME_BYTES + PAYLOAD_BYTES };

static const mr_frame activations = {
    .kind = MR_FRAME_ACTIVATIONS,
    .epoch = 0x01020304,
    .step = 0x1122334455667788,
    .rows = ROWS,
    .type = 7,
    .row_bytes = ROW_BYTES,
    .payload_bytes = PAYLOAD_BYTES,
};

static void make_frame(const mr_frame *f, uint8_t *buffer) {
    for (size_t i = 0; i < f->payload_bytes; i++)
        buffer[MR_FRAME_BYTES + i] = (uint8_t)(i * 7 + 1);
    mr_frame_seal(f, buffer);
}

static mr_status open_frame(const uint8_t *buffer, size_t bytes, mr_frame *out, mr_err *err) {
    return mr_frame_open(buffer, bytes, MR_FRAME_ACTIVATIONS, out, err);
}

static void test_round_trip(void **state) {
    (void)state;
    uint8_t buffer[BYTES];
    mr_frame got = {0};
    make_frame(&activations, buffer);
    assert_int_equal(open_frame(buffer, BYTES, &got, NULL), MR_OK);
    assert_int_equal(got.kind, activations.kind);
    assert_int_equal(got.epoch, activations.epoch);
    assert_true(got.step == activations.step);
    assert_int_equal(got.rows, ROWS);
    assert_int_equal(got.type, 7);
    assert_int_equal(got.row_bytes, ROW_BYTES);
    assert_int_equal(got.payload_bytes, PAYLOAD_BYTES);
}

/* The bytes of the header are a contract between machines. */
static void test_layout(void **state) {
    (void)state;
    static const uint8_t head[48] = {'M',  'R',  'F', '1', 2, 0,    2,         0,    4,    3,    2,
                                     1,    3,    0,   0,   0, 0x88, 0x77,      0x66, 0x55, 0x44, 0x33,
                                     0x22, 0x11, 7,   0,   0, 0,    ROW_BYTES, 0,    0,    0,    PAYLOAD_BYTES};
    uint8_t buffer[BYTES];
    make_frame(&activations, buffer);
    assert_memory_equal(buffer, head, sizeof head);
}

static void test_every_flipped_bit_is_refused(void **state) {
    (void)state;
    uint8_t buffer[BYTES];
    mr_frame got = {.step = 99};
    for (size_t bit = 0; bit < BYTES * 8; bit++) {
        mr_err err = {0};
        make_frame(&activations, buffer);
        buffer[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(open_frame(buffer, BYTES, &got, &err), MR_E_PROTOCOL);
        assert_true(err.text[0]);
        assert_int_equal(got.step, 99);
    }
}

static void test_every_length_but_its_own_is_refused(void **state) {
    (void)state;
    uint8_t buffer[BYTES + 8] = {0};
    mr_frame got;
    make_frame(&activations, buffer);
    for (size_t n = 0; n <= sizeof buffer; n++)
        assert_int_equal(open_frame(buffer, n, &got, NULL), n == BYTES ? MR_OK : MR_E_PROTOCOL);
}

static void expect_refused(const uint8_t *buffer, mr_frame_kind kind, const char *words) {
    mr_frame got;
    mr_err err = {0};
    assert_int_equal(mr_frame_open(buffer, BYTES, kind, &got, &err), MR_E_PROTOCOL);
    expect_says(err.text, words);
}

/* The error names the first wrong value. */
static void test_errors_name_what_is_wrong(void **state) {
    (void)state;
    uint8_t buffer[BYTES];
    make_frame(&activations, buffer);
    buffer[0] = 'X';
    expect_refused(buffer, MR_FRAME_ACTIVATIONS, "magic 0x31465258");
    make_frame(&activations, buffer);
    mr_store_le16(buffer + 4, 9);
    expect_refused(buffer, MR_FRAME_ACTIVATIONS, "wire version 9");
    make_frame(&activations, buffer);
    expect_refused(buffer, MR_FRAME_LOGITS, "kind 2 where kind 4");
    mr_store_le16(buffer + 6, 77);
    expect_refused(buffer, MR_FRAME_ACTIVATIONS, "kind 77");
    make_frame(&activations, buffer);
    mr_store_le64(buffer + 32, UINT64_MAX);
    expect_refused(buffer, MR_FRAME_ACTIVATIONS, "payload of 18446744073709551615");
    mr_store_le64(buffer + 32, PAYLOAD_BYTES - 1);
    expect_refused(buffer, MR_FRAME_ACTIVATIONS, "frame of 116 bytes claims a payload of 59");
    make_frame(&activations, buffer);
    buffer[BYTES - 1] ^= 1;
    expect_refused(buffer, MR_FRAME_ACTIVATIONS, "checksum");
}

/* Rows are checked even where the checksum is right: a peer may be wrong and consistent. */
static void test_rows_must_fit_the_payload(void **state) {
    (void)state;
    uint8_t buffer[BYTES];
    mr_frame f = activations, got;
    f.rows = ROWS + 1;
    make_frame(&f, buffer);
    expect_refused(buffer, MR_FRAME_ACTIVATIONS, "4 rows of 20 bytes");
    f = activations;
    f.row_bytes = UINT32_MAX;
    make_frame(&f, buffer);
    expect_refused(buffer, MR_FRAME_ACTIVATIONS, "3 rows of 4294967295");
    f = activations;
    f.rows = MR_MAX_STEP_ROWS + 1;
    make_frame(&f, buffer);
    expect_refused(buffer, MR_FRAME_ACTIVATIONS, "4097 rows");
    /* Frames of other kinds have no rows. */
    f.kind = MR_FRAME_CONTROL;
    make_frame(&f, buffer);
    assert_int_equal(mr_frame_open(buffer, BYTES, MR_FRAME_CONTROL, &got, NULL), MR_OK);
}

/* Rows that go from device to device: the frame says how many, and has none. */
static void test_rows_by_device(void **state) {
    (void)state;
    uint8_t buffer[BYTES];
    mr_frame f = activations, got;
    f.by_device = true;
    make_frame(&f, buffer);
    expect_refused(buffer, MR_FRAME_ACTIVATIONS, "with a payload of 60 bytes says that its rows go by device");
    f.payload_bytes = 0;
    mr_frame_seal(&f, buffer);
    assert_int_equal(mr_frame_open(buffer, MR_FRAME_BYTES, MR_FRAME_ACTIVATIONS, &got, NULL), MR_OK);
    assert_true(got.by_device);
    assert_int_equal(got.type, activations.type);
    assert_int_equal(got.rows, ROWS);
    f.by_device = false;
    mr_frame_seal(&f, buffer);
    assert_int_equal(mr_frame_open(buffer, MR_FRAME_BYTES, MR_FRAME_ACTIVATIONS, &got, NULL), MR_E_PROTOCOL);
    f.by_device = true;
    f.kind = MR_FRAME_LOGITS;
    mr_frame_seal(&f, buffer);
    assert_int_equal(mr_frame_open(buffer, MR_FRAME_BYTES, MR_FRAME_LOGITS, &got, NULL), MR_E_PROTOCOL);
}

static void test_empty_payload(void **state) {
    (void)state;
    uint8_t buffer[MR_FRAME_BYTES];
    mr_frame f = {.kind = MR_FRAME_TOKENS, .epoch = 1, .step = 2}, got;
    mr_frame_seal(&f, buffer);
    assert_int_equal(mr_frame_open(buffer, sizeof buffer, MR_FRAME_TOKENS, &got, NULL), MR_OK);
    assert_int_equal(got.payload_bytes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_every_flipped_bit_is_refused),
        cmocka_unit_test(test_every_length_but_its_own_is_refused),
        cmocka_unit_test(test_errors_name_what_is_wrong),
        cmocka_unit_test(test_rows_must_fit_the_payload),
        cmocka_unit_test(test_rows_by_device),
        cmocka_unit_test(test_empty_payload),
    };
    return cmocka_run_group_tests_name("proto_frame", tests, NULL, NULL);
}
