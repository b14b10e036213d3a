/* Which requests the server admits: keys, hosts, origins. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/serving/http/http_guard.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

static void test_keys(void **state) {
    static const char *const LIST[] = {"first", "second key"};
    http_keys k, none = {0};
    mr_err err;
    (void)state;
    expect_ok(http_keys_init(&k, LIST, 2, &err), &err);
    assert_true(http_keys_admit(&k, "Bearer first", NULL));
    assert_true(http_keys_admit(&k, "bearer second key", NULL));
    assert_true(http_keys_admit(&k, NULL, "first"));
    assert_false(http_keys_admit(&k, NULL, NULL));
    assert_false(http_keys_admit(&k, "", ""));
    assert_false(http_keys_admit(&k, "Bearer ", NULL));
    assert_false(http_keys_admit(&k, "Bearer firs", NULL));
    assert_false(http_keys_admit(&k, "Bearer first ", NULL));
    assert_false(http_keys_admit(&k, "Bearer First", NULL));
    assert_false(http_keys_admit(&k, "Basic first", NULL));
    assert_false(http_keys_admit(&k, "Bearer wrong", "first")); /* what is said in Authorization counts */
    assert_true(http_keys_admit(&none, NULL, NULL));
    http_keys_deinit(&k);
    mr_mem_fail_at(0);
    assert_int_equal(http_keys_init(&k, LIST, 2, &err), MR_E_NO_MEMORY);
    mr_mem_fail_at(-1);
}

static void test_hosts(void **state) {
    static const char *const GOOD[] = {"localhost", "LOCALHOST:8080", "127.0.0.1",        "127.0.0.1:80", "127.1.2.3:1",
                                       "[::1]",     "[::1]:8080",     "page.localhost:1", "my.name:8080", "my.name"};
    static const char *const BAD[] = {"",
                                      "evil.example",
                                      "localhost.evil.example",
                                      "127.evil.example",
                                      "127.",
                                      "127.0.0.1.evil.example",
                                      "[::2]",
                                      "notlocalhost",
                                      "192.168.0.1",
                                      "0.0.0.0:80"};
    (void)state;
    assert_true(http_host_is_local(NULL, "my.name"));
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++)
        if (!http_host_is_local(GOOD[i], "my.name"))
            fail_msg("%s is refused", GOOD[i]);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        if (http_host_is_local(BAD[i], "my.name"))
            fail_msg("%s is taken", BAD[i]);
}

static void test_origins(void **state) {
    static const char *const LIST[] = {"https://app.example", "http://a.example:3000"}, *const ALL[] = {"*"};
    (void)state;
    assert_int_equal(http_origin_judge(NULL, "h", LIST, 2), HTTP_ORIGIN_OWN);
    assert_int_equal(http_origin_judge("http://h:8080", "h:8080", LIST, 2), HTTP_ORIGIN_OWN);
    assert_int_equal(http_origin_judge("https://h:8080", "H:8080", NULL, 0), HTTP_ORIGIN_OWN);
    assert_int_equal(http_origin_judge("http://h", "h:8080", NULL, 0), HTTP_ORIGIN_FOREIGN);
    assert_int_equal(http_origin_judge("null", "h", LIST, 2), HTTP_ORIGIN_FOREIGN);
    assert_int_equal(http_origin_judge("https://app.example", "h", LIST, 2), HTTP_ORIGIN_ALLOWED);
    assert_int_equal(http_origin_judge("https://app.example.evil", "h", LIST, 2), HTTP_ORIGIN_FOREIGN);
    assert_int_equal(http_origin_judge("http://a.example", "h", LIST, 2), HTTP_ORIGIN_FOREIGN);
    assert_int_equal(http_origin_judge("null", "h", ALL, 1), HTTP_ORIGIN_ALLOWED);
    assert_int_equal(http_origin_judge("http://h", NULL, LIST, 2), HTTP_ORIGIN_FOREIGN);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keys), cmocka_unit_test(test_hosts),
                                       cmocka_unit_test(test_origins)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
