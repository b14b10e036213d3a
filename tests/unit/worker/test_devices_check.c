/* Devices that say they are exact are compared with the CPU. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/support/wrong_bits.h"
#include "worker/stage/devices_check.h"

static mr_backend *create(const test_device_options *options) {
    mr_backend *be = NULL;
    mr_err err = {0};
    expect_ok(test_device_create(options, &be, &err), &err);
    return be;
}

static mr_devices list_of(mr_backend *first, mr_backend *second) {
    return (mr_devices){.list = {.at = {first, second}, .n = second ? 2 : 1}};
}

static void test_equal_bits_are_taken(void **state) {
    (void)state;
    mr_err err = {0};
    mr_devices d = list_of(create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS}),
                           create(&(test_device_options){.ops = 1u << MR_OP_MATMUL, .min_rows = 16}));
    expect_ok(mr_devices_check(&d, &err), &err);
    mr_devices_destroy(&d);
    expect_ok(mr_devices_check(&d, &err), &err); /* no devices */
}

static void test_other_bits_are_refused(void **state) {
    (void)state;
    mr_err err = {0};
    mr_devices d = list_of(create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS}),
                           create(&(test_device_options){.name = "card 2", .ops = TEST_DEVICE_ALL_OPS}));
    wrong_bits_begin(d.list.at[1], MR_OP_ATTENTION, MR_TYPE_Q8_0);
    expect_fails(mr_devices_check(&d, &err), MR_E_UNSUPPORTED, &err,
                 "device 'card 2' computes other bits than the CPU in: attention Q8_0; hint: ");
    wrong_bits_end();
    wrong_bits_begin(d.list.at[0], MR_OP_SOFT_CAP, MR_TYPE_FILE_COUNT);
    expect_fails(mr_devices_check(&d, &err), MR_E_UNSUPPORTED, &err,
                 "device 'test device' computes other bits than the CPU in: soft_cap; hint: ");
    wrong_bits_end();
    expect_ok(mr_devices_check(&d, &err), &err);
    mr_devices_destroy(&d);
}

static void test_devices_that_nobody_has_named_are_left_out(void **state) {
    (void)state;
    mr_err err = {0};
    mr_backend *good = create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS});
    mr_devices d = list_of(create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .n_good = 100}), good);
    d.is_auto = d.is_measured = true;
    expect_ok(mr_devices_check(&d, &err), &err);
    assert_int_equal(d.list.n, 1);
    assert_ptr_equal(d.list.at[0], good);
    assert_true(d.is_measured);
    wrong_bits_begin(good, MR_OP_ADD, MR_TYPE_FILE_COUNT);
    expect_ok(mr_devices_check(&d, &err), &err);
    wrong_bits_end();
    assert_int_equal(d.list.n, 0);
    assert_false(d.is_measured);
}

/* For fast numerics. */
static void test_inexact_devices_are_not_compared(void **state) {
    (void)state;
    mr_err err = {0};
    mr_devices d = list_of(create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .is_inexact = true}), NULL);
    wrong_bits_begin(d.list.at[0], MR_OP_MATMUL, MR_TYPE_FILE_COUNT);
    expect_ok(mr_devices_check(&d, &err), &err);
    wrong_bits_end();
    assert_int_equal(test_device_get_stats(d.list.at[0]).n_submits, 0);
    mr_devices_destroy(&d);
}

static void test_broken_devices(void **state) {
    (void)state;
    mr_err err = {0};
    mr_devices d = list_of(create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .n_good = 100}), NULL);
    expect_fails(mr_devices_check(&d, &err), MR_E_DEVICE, &err,
                 "device 'test device' could not be compared with the CPU: the test device is broken");
    mr_devices_destroy(&d);
    d = list_of(create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .memory_bytes = 1 << 20}), NULL);
    expect_fails(mr_devices_check(&d, &err), MR_E_NO_MEMORY, &err, "device 'test device' could not be compared");
    mr_devices_destroy(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_bits_are_taken),
        cmocka_unit_test(test_other_bits_are_refused),
        cmocka_unit_test(test_devices_that_nobody_has_named_are_left_out),
        cmocka_unit_test(test_inexact_devices_are_not_compared),
        cmocka_unit_test(test_broken_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
