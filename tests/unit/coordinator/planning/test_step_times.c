/* Step times for row counts between and beyond the measured row counts. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/planning/step_times.h"
#include "tests/support/test.h"

static void lies_between_the_points(void **state) {
    (void)state;
    const mr_step_times t = {.n = 3, .rows = {1, 4, 8}, .seconds = {1, 2.5, 3.5}};
    assert_float_equal(mr_step_times_at(&t, 1), 1, 1e-12);
    assert_float_equal(mr_step_times_at(&t, 3), 2, 1e-12);
    assert_float_equal(mr_step_times_at(&t, 4), 2.5, 1e-12);
    assert_float_equal(mr_step_times_at(&t, 6), 3, 1e-12);
    assert_float_equal(mr_step_times_at(&t, 8), 3.5, 1e-12);
}

static void goes_on_beyond_them(void **state) {
    (void)state;
    const mr_step_times t = {.n = 2, .rows = {2, 4}, .seconds = {1, 2}}, falling = {2, {2, 4}, {2, 1}},
                        one = {1, {4}, {3}};
    assert_float_equal(mr_step_times_at(&t, 1), 1, 1e-12);
    assert_float_equal(mr_step_times_at(&t, 10), 5, 1e-12);
    assert_float_equal(mr_step_times_at(&falling, 100), 1, 1e-12);
    assert_float_equal(mr_step_times_at(&one, 100), 3, 1e-12);
}

static void knows_nothing_of_nothing(void **state) {
    (void)state;
    const mr_step_times t = {.n = 1, .rows = {1}, .seconds = {1}}, none = {0};
    assert_float_equal(mr_step_times_at(&t, 0), 0, 0);
    assert_float_equal(mr_step_times_at(&none, 5), 0, 0);
}

static void compares_curves(void **state) {
    (void)state;
    const mr_step_times t = {.n = 2, .rows = {1, 4}, .seconds = {2, 8}}, to = {3, {1, 2, 8}, {1, 2, 8}}, none = {0};
    assert_float_equal(mr_step_times_ratio(&t, &to), 2, 1e-12);
    assert_float_equal(mr_step_times_ratio(&t, &none), 0, 0);
    assert_float_equal(mr_step_times_ratio(&none, &to), 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_between_the_points),
        cmocka_unit_test(goes_on_beyond_them),
        cmocka_unit_test(knows_nothing_of_nothing),
        cmocka_unit_test(compares_curves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
