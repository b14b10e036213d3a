/* Progress if standard error is not a terminal: each line is printed once, and no line repeats the previous one. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/console/progress.h"
#include "engine/base/clock.h"
#include "tests/support/test.h"

/* Captures the text that shows(p) writes to standard error. */
static void capture(void (*shows)(mr_progress *p), char *out, size_t size) {
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    mr_progress p;
    assert_non_null(file);
    assert_true(saved >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    mr_progress_begin(&p);
    shows(&p);
    mr_progress_end(&p);
    fflush(stderr);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    rewind(file);
    out[fread(out, 1, size - 1, file)] = 0;
    fclose(file);
}

static void show_three(mr_progress *p) {
    mr_progress_show(p, "measuring: 0 of 2");
    mr_progress_show(p, "measuring: 0 of 2");
    mr_progress_show(p, "measuring: 1 of 2");
    mr_progress_show(p, "measuring: 1 of 2");
}

static void test_nothing_is_said_twice(void **state) {
    (void)state;
    char text[256];
    capture(show_three, text, sizeof text);
    assert_string_equal(text, "measuring: 0 of 2\nmeasuring: 1 of 2\n");
}

static void test_lines_are_seconds_apart(void **state) {
    (void)state;
    mr_progress p;
    mr_progress_begin(&p);
    assert_false(mr_progress_is_due(&p));
    assert_true(p.next_ns > mr_clock_now_ns());
    p.next_ns = 0;
    assert_true(mr_progress_is_due(&p));
    assert_false(mr_progress_is_due(&p));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_said_twice),
        cmocka_unit_test(test_lines_are_seconds_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
