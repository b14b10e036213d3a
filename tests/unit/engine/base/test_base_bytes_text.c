/* Numbers of bytes as texts, at the borders of their units, and pairs that must not look the same. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/bytes_text.h"
#include "tests/support/test.h"

static void test_units(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } CASES[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.0 KiB"},
                 {1 << 20, "1.0 MiB"},
                 {(1 << 20) - 1, "1.0 MiB"},
                 {1023 << 10, "1023.0 KiB"},
                 {UINT64_C(1) << 30, "1.0 GiB"},
                 {(UINT64_C(1) << 30) - (1 << 20), "1023.0 MiB"},
                 {UINT64_C(3) << 39, "1.5 TiB"},
                 {UINT64_MAX, "16.0 EiB"}};
    char out[MR_BYTES_TEXT];
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++)
        assert_string_equal(mr_bytes_text(CASES[i].bytes, out), CASES[i].text);
}

static void expect_pair(uint64_t a, uint64_t b, const char *text_a, const char *text_b) {
    const mr_bytes_pair pair = mr_bytes_apart(a, b);
    assert_string_equal(pair.a, text_a);
    assert_string_equal(pair.b, text_b);
}

static void test_pairs(void **state) {
    (void)state;
    expect_pair(1 << 20, 9 << 20, "1.0 MiB", "9.0 MiB");
    expect_pair(5 << 20, 5 << 20, "5.0 MiB", "5.0 MiB");
    expect_pair(5 << 20, (5 << 20) + (1 << 14), "5.00 MiB", "5.02 MiB");
    expect_pair(1000, 1001, "1000 B", "1001 B");
    expect_pair((1 << 20) - 1, 1 << 20, "0.999999 MiB", "1.000000 MiB");
    expect_pair(UINT64_C(1) << 40, (UINT64_C(1) << 40) + 1, "1099511627776 B", "1099511627777 B");
    expect_pair(UINT64_MAX - 1, UINT64_MAX, "18446744073709551614 B", "18446744073709551615 B");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_units), cmocka_unit_test(test_pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
