/* Whether a step thread hangs, beat by beat. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/step_watch.h"
#include "tests/support/test.h"

static bool on_disk;
static int n_asked; /* whether a disk keeps it waiting */

static bool waits_for_disk(void) {
    n_asked++;
    return on_disk;
}

static step_look look_of(bool runs_steps) {
    return (step_look){.may_look = true, .runs_steps = runs_steps, .n_looks = 7, .waits_for_disk = waits_for_disk};
}

/* Beats until it hangs, at most `most`. Each beat adds to looks and CPU time. */
static int beats(step_watch *w, step_look *look, int looks, int64_t cpu_ns, int most) {
    for (int n = 1; n <= most; n++) {
        look->n_looks += (uint64_t)looks;
        look->cpu_ns += cpu_ns;
        if (step_watch_hangs(w, look))
            return n;
    }
    return most + 1;
}

static void test_a_thread_that_works(void **state) {
    (void)state;
    step_watch w = {0};
    step_look look = look_of(true);
    n_asked = 0;
    assert_int_equal(beats(&w, &look, 1, 0, 2000), 2001); /* waits for messages */
    assert_int_equal(beats(&w, &look, 1, 1000, 2000), 2001);
    assert_int_equal(beats(&w, &look, 0, 1000, STEP_BLIND_BEATS - 1), STEP_BLIND_BEATS); /* a long node */
    assert_int_equal(beats(&w, &look, 1, 0, 1), 2);
    assert_int_equal(beats(&w, &look, 0, 0, STEP_IDLE_BEATS - 1), STEP_IDLE_BEATS); /* others have its core */
    assert_int_equal(beats(&w, &look, 0, 1, 1), 2);
    assert_int_equal(n_asked, 0);
}

static void test_a_thread_that_stands_still(void **state) {
    (void)state;
    for (int disk = 0; disk < 2; disk++) {
        step_watch w = {0};
        step_look look = look_of(true);
        on_disk = disk;
        (void)step_watch_hangs(&w, &look);
        assert_int_equal(beats(&w, &look, 0, 0, 2000), disk ? STEP_DISK_BEATS : STEP_IDLE_BEATS);
    }
}

static void test_a_thread_that_computes_without_end(void **state) {
    (void)state;
    step_watch w = {0};
    step_look look = look_of(true);
    on_disk = false;
    (void)step_watch_hangs(&w, &look);
    assert_int_equal(beats(&w, &look, 0, 1000, 2000), STEP_BLIND_BEATS);
}

static void test_a_load(void **state) {
    (void)state;
    step_watch w = {0};
    step_look look = look_of(false);
    on_disk = false;
    (void)step_watch_hangs(&w, &look);
    assert_int_equal(beats(&w, &look, 0, 1000, 2000), 2001); /* slow, but it goes on */
    assert_int_equal(beats(&w, &look, 0, 0, 2000), STEP_LOADING_BEATS);
    look.may_look = false; /* MPI has ended, or does not run yet */
    assert_int_equal(beats(&w, &look, 0, 0, 2000), 2001);
}

/* This process runs, so no thread of it waits for a disk; but its threads are looked at. */
static void test_this_process(void **state) {
    (void)state;
    assert_false(step_watch_waits_for_disk());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thread_that_works),
        cmocka_unit_test(test_a_thread_that_stands_still),
        cmocka_unit_test(test_a_thread_that_computes_without_end),
        cmocka_unit_test(test_a_load),
        cmocka_unit_test(test_this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
