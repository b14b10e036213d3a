// SPDX-License-Identifier: Apache-2.0
/* How often the stages begin again after malformed messages, over a clock of the test. */
#include "coordinator/session/restart_limit.h"
#include "tests/support/test.h"

static const int64_t MINUTE_NS = 60 * MR_NS_PER_S, WITHIN_NS = MR_RESTART_MINUTES * 60 * MR_NS_PER_S;

static void test_many_in_a_short_time_are_too_many(void **state) {
    mr_restart_limit limit = {0};
    (void)state;
    for (int i = 0; i < MR_RESTARTS; i++)
        assert_true(mr_restart_limit_take(&limit, i));
    assert_false(mr_restart_limit_take(&limit, MR_RESTARTS));
    assert_false(mr_restart_limit_take(&limit, WITHIN_NS - 1));
    assert_true(mr_restart_limit_take(&limit, WITHIN_NS)); /* the first one is ten minutes old */
    assert_true(mr_restart_limit_take(&limit, WITHIN_NS + 1));
    for (int i = 2; i < MR_RESTARTS; i++)
        assert_true(mr_restart_limit_take(&limit, WITHIN_NS + i));
    assert_false(mr_restart_limit_take(&limit, WITHIN_NS + MR_RESTARTS));
}

/* A refused message does not count, so that a pause of ten minutes is enough. */
static void test_refusals_do_not_count(void **state) {
    mr_restart_limit limit = {0};
    (void)state;
    for (int i = 0; i < MR_RESTARTS; i++)
        assert_true(mr_restart_limit_take(&limit, 0));
    for (int i = 0; i < 100; i++)
        assert_false(mr_restart_limit_take(&limit, WITHIN_NS - 1));
    for (int i = 0; i < MR_RESTARTS; i++)
        assert_true(mr_restart_limit_take(&limit, WITHIN_NS));
}

static void test_one_now_and_then_goes_on_for_ever(void **state) {
    mr_restart_limit daily = {0}, dense = {0};
    (void)state;
    for (int64_t day = 0; day < 1000; day++)
        assert_true(mr_restart_limit_take(&daily, day * 24 * 60 * MINUTE_NS));
    for (int64_t i = 0; i < 1000; i++)
        assert_true(mr_restart_limit_take(&dense, i * (WITHIN_NS / MR_RESTARTS)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_in_a_short_time_are_too_many),
        cmocka_unit_test(test_refusals_do_not_count),
        cmocka_unit_test(test_one_now_and_then_goes_on_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
