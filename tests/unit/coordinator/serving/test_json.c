// SPDX-License-Identifier: Apache-2.0
/* Any legal JSON is read: numbers of any length keep their digits, half a surrogate pair and a zero byte in a name
 * become U+FFFD. What is no JSON is refused with its place. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/json/json.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

#define LONG "18446744073709551615"
#define REPLACED "\xEF\xBF\xBD"

static json_t *take(const char *text) {
    mr_err err = {0};
    json_t *value = mr_json_read(mr_str_from(text), 0, &err);
    if (!value)
        fail_msg("%s: %s", text, err.text);
    return value;
}

/* Texts, and how they are written again. */
static void test_read_and_dump(void **state) {
    (void)state;
    static const char *const CASES[][2] = {
        {"{\"a\": " LONG "}", NULL},
        {"[-9223372036854775808, -9223372036854775809, 9223372036854775807, 9223372036854775808]", NULL},
        {"[" LONG ", {\"b\": [" LONG LONG "]}, \"" LONG "\", 1]", NULL},
        {"-" LONG, NULL},
        {"[1e400, -1E+999, 1.5e400]", NULL},
        {"[1e5, -0.5]", "[100000.0, -0.5]"},
        {"\"\\ud800 \\udc00x\\uD83D\\uDE00\\ud83d\\u0041\\\\ud800\"",
         "\"" REPLACED " " REPLACED "x\xF0\x9F\x98\x80" REPLACED "A\\\\ud800\""},
        {"{\"a\\u0000b\" : \"c\\u0000d\"}", "{\"a" REPLACED "b\": \"c\\u0000d\"}"},
        {"{\"\\ud800\": 1}", "{\"" REPLACED "\": 1}"},
        {"{\"\xEF\xB7\x90\": \"5}, 6\"}", "{\"" REPLACED "\": \"5}, 6\"}"},
        {"{\"\\uFdd0\": \"5\"}", "{\"" REPLACED "\": \"5\"}"},
        {"[\"\xEF\xB7\x90\\\": 5}\"]", NULL},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        json_t *value = take(CASES[i][0]);
        char *text = mr_json_dump(value, 0);
        assert_string_equal(text, CASES[i][1] ? CASES[i][1] : CASES[i][0]);
        free(text);
        json_decref(value);
    }
    json_t *value = take("{\"a\": [" LONG "]}");
    char *text = mr_json_dump(value, JSON_INDENT(2));
    assert_string_equal(text, "{\n  \"a\": [\n    " LONG "\n  ]\n}");
    free(text);
    json_decref(value);
}

static void test_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double want;
        bool is_long;
    } CASES[] = {
        {"7", 7, false}, {"-1.5", -1.5, false}, {LONG, 18446744073709551616.0, true}, {"1e400", INFINITY, true}};
    double x = 0;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        json_t *value = take(CASES[i].text);
        assert_true(mr_json_number(value, &x) && x == CASES[i].want);
        assert_int_equal(mr_json_digits(value) != NULL, CASES[i].is_long);
        json_decref(value);
    }
    json_t *rounded = mr_json_read(mr_str_from("[" LONG ", -1e400, 5]"), MR_JSON_ROUNDED, NULL);
    assert_true(json_real_value(json_array_get(rounded, 0)) == 18446744073709551616.0);
    assert_true(json_real_value(json_array_get(rounded, 1)) == -DBL_MAX);
    assert_int_equal(json_integer_value(json_array_get(rounded, 2)), 5);
    json_decref(rounded);
    json_t *other = take("{\"a\": \"5\"}");
    assert_true(!mr_json_number(other, &x) && !mr_json_digits(other));
    json_decref(other);
}

static void test_no_json(void **state) {
    (void)state;
    static const char *const CASES[][2] = {
        {"", "line 1"},
        {"{\"a\": 0" LONG "}", "line 1"},
        {"[1\n, " LONG "x]", "line 2"},
        {"\"\\", "line 1"},
        {"\"a\\ud8", "line 1"},
        {"[-]", "line 1"},
        {"[1.]", "line 1"},
        {"[1e]", "line 1"},
        {"\xEF\xBB\xBF{}", "line 1"},
        {"\"\xFF\"", "line 1"},
        {LONG "e", "line 1"},
        {"{\"a\" ", "line 1"},
    };
    mr_err err;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        assert_null(mr_json_read(mr_str_from(CASES[i][0]), 0, &err));
        assert_int_equal(err.status, MR_E_FORMAT);
        expect_says(err.text, CASES[i][1]);
    }
    json_t *twice = take("{\"a\": 1, \"a\": 2}");
    assert_int_equal(json_integer_value(json_object_get(twice, "a")), 2);
    json_decref(twice);
    assert_null(mr_json_read(mr_str_from("{\"a\": 1, \"a\": 2}"), MR_JSON_UNIQUE_NAMES, &err));
    assert_null(mr_json_read(mr_str_from("5 6"), MR_JSON_UNIQUE_NAMES, NULL));
    mr_mem_fail_at(0);
    assert_null(mr_json_read(mr_str_from(LONG), 0, &err));
    mr_mem_fail_at(-1);
    assert_int_equal(err.status, MR_E_NO_MEMORY);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_read_and_dump), cmocka_unit_test(test_numbers),
                                       cmocka_unit_test(test_no_json)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
