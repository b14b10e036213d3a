// SPDX-License-Identifier: Apache-2.0
/* The text of an error: a prefix goes in front, and a text that is too long loses its end. */
#include "tests/support/test.h"

static void test_prefix(void **state) {
    (void)state;
    mr_err err;
    assert_int_equal(mr_err_set(&err, MR_E_IO, "%s has %d bytes", "m.gguf", 3), MR_E_IO);
    expect_fails(mr_err_prefix(&err, "rank %d", 2), MR_E_IO, &err, "rank 2: m.gguf has 3 bytes");
}

static void test_long_text(void **state) {
    (void)state;
    mr_err err;
    expect_fails(mr_err_set(&err, MR_E_INVALID, "%*s", 2 * MR_ERR_TEXT_BYTES, "x"), MR_E_INVALID, &err, "   ");
    assert_int_equal(strlen(err.text), MR_ERR_TEXT_BYTES - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prefix), cmocka_unit_test(test_long_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
