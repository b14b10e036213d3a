/* The reader of untrusted bytes: wrong lengths, alignment, and an error that stays set. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"
#include "engine/base/reader.h"
#include "tests/support/test.h"

static void test_numbers(void **state) {
    (void)state;
    uint8_t buf[64];
    uint8_t *p = buf;
    *p++ = 0xfe;
    mr_store_le16(p, 0x1234), p += 2;
    mr_store_le32(p, 0xdeadbeef), p += 4;
    mr_store_le64(p, 0x0123456789abcdefull), p += 8;
    mr_store_le_f32(p, -1.5f), p += 4;
    mr_store_le_f64(p, 0.1), p += 8;
    *p++ = 0x80;
    mr_store_le16(p, 0xffff), p += 2;
    mr_store_le32(p, 0x80000000), p += 4;
    mr_store_le64(p, UINT64_MAX), p += 8;
    assert_int_equal(buf[1], 0x34);
    assert_int_equal(buf[3], 0xef);
    assert_int_equal(buf[14], 0x01);

    mr_reader r;
    mr_reader_init(&r, buf, (size_t)(p - buf));
    assert_int_equal(mr_reader_u8(&r), 0xfe);
    assert_int_equal(mr_reader_u16(&r), 0x1234);
    assert_int_equal(mr_reader_u32(&r), 0xdeadbeef);
    assert_true(mr_reader_u64(&r) == 0x0123456789abcdefull);
    assert_true(mr_reader_f32(&r) == -1.5f);
    assert_true(mr_reader_f64(&r) == 0.1);
    assert_int_equal(mr_reader_i8(&r), -128);
    assert_int_equal(mr_reader_i16(&r), -1);
    assert_true(mr_reader_i32(&r) == INT32_MIN);
    assert_true(mr_reader_i64(&r) == -1);
    assert_int_equal(mr_reader_remaining(&r), 0);
    assert_int_equal(mr_reader_status(&r, NULL), MR_OK);
}

/* Every prefix of the data fails at the first read that does not fit, and stays failed. */
static void test_failure_is_sticky(void **state) {
    (void)state;
    for (size_t size = 0; size < 15; size++) {
        uint8_t *exact = mr_alloc(size); /* an exact allocation, so that ASan sees a read behind the end */
        memset(exact, 0xff, size);
        mr_reader r;
        mr_reader_init(&r, exact, size);
        mr_reader_u8(&r);
        mr_reader_u16(&r);
        mr_reader_u32(&r);
        mr_reader_u64(&r);
        assert_false(mr_reader_ok(&r));
        size_t at = size < 1 ? 0 : size < 3 ? 1 : size < 7 ? 3 : 7;
        assert_int_equal(mr_reader_position(&r), at);
        assert_int_equal(mr_reader_remaining(&r), 0);
        assert_int_equal(mr_reader_u8(&r), 0);
        assert_int_equal(mr_reader_i64(&r), 0);
        assert_null(mr_reader_bytes(&r, 0));
        mr_err err;
        expect_fails(mr_reader_status(&r, &err), MR_E_FORMAT, &err, "ends early");
        mr_free(exact);
    }
}

static void test_hostile_lengths(void **state) {
    (void)state;
    uint8_t buf[16] = {0};
    const uint64_t lengths[] = {17, UINT32_MAX, (uint64_t)1 << 32, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        mr_reader r;
        mr_reader_init(&r, buf, sizeof buf);
        assert_null(mr_reader_bytes(&r, lengths[i]));
        mr_reader_init(&r, buf, sizeof buf);
        mr_reader_u64(&r);
        mr_reader_skip(&r, lengths[i]);
        assert_false(mr_reader_ok(&r));
        mr_reader_init(&r, buf, sizeof buf);
        assert_null(mr_reader_array(&r, lengths[i], 8));
        assert_false(mr_reader_ok(&r));
    }
    mr_reader r;
    mr_reader_init(&r, buf, sizeof buf);
    /* 2^62 * 4 overflows to 0. */
    assert_null(mr_reader_array(&r, (uint64_t)1 << 62, 4));
    mr_reader_init(&r, buf, sizeof buf);
    assert_ptr_equal(mr_reader_array(&r, 4, 4), buf);
    assert_int_equal(mr_reader_remaining(&r), 0);
}

static void test_align_and_skip(void **state) {
    (void)state;
    uint8_t buf[40] = {0};
    mr_reader r;
    mr_reader_init(&r, buf, sizeof buf);
    mr_reader_align(&r, 32);
    assert_int_equal(mr_reader_position(&r), 0);
    mr_reader_u8(&r);
    mr_reader_align(&r, 32);
    assert_int_equal(mr_reader_position(&r), 32);
    mr_reader_skip(&r, 1);
    mr_reader_align(&r, 3);
    assert_int_equal(mr_reader_position(&r), 33);
    assert_int_equal(mr_reader_remaining(&r), 7);
    mr_reader_align(&r, 32);
    assert_false(mr_reader_ok(&r));
}

static void test_empty(void **state) {
    (void)state;
    mr_reader r;
    mr_reader_init(&r, NULL, 0);
    assert_non_null(mr_reader_bytes(&r, 0));
    assert_true(mr_reader_ok(&r));
    assert_int_equal(mr_reader_u8(&r), 0);
    assert_false(mr_reader_ok(&r));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),         cmocka_unit_test(test_failure_is_sticky),
        cmocka_unit_test(test_hostile_lengths), cmocka_unit_test(test_align_and_skip),
        cmocka_unit_test(test_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
