/* tests/kernels/aarch64/cmocka.h - the part of cmocka's interface that the kernel tests use, for cross builds, because
 * cross compilers come without the library. A failed assertion ends its test.
 * Threads: the main thread only. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_KERNELS_AARCH64_CMOCKA_H
#define MR_TESTS_KERNELS_AARCH64_CMOCKA_H

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

enum { CMOCKA_PASSED, CMOCKA_FAILED, CMOCKA_SKIPPED };
static jmp_buf cmocka_end; /* end of the running test */

#define cmocka_unit_test(f)                                                                                            \
    { #f, f }
#define print_message(...) (void)printf(__VA_ARGS__)
#define skip() longjmp(cmocka_end, CMOCKA_SKIPPED)
#define fail_msg(...)                                                                                                  \
    (printf("%s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__), printf("\n"), longjmp(cmocka_end, CMOCKA_FAILED))
#define assert_true(c) ((c) ? (void)0 : fail_msg("not true: %s", #c))
#define assert_null(p) assert_true((p) == NULL)
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_string_equal(a, b) assert_true(strcmp(a, b) == 0)
#define assert_memory_equal(a, b, n) assert_true(memcmp(a, b, n) == 0)
#define assert_int_equal(a, b) cmocka_int_equal((long long)(a), (long long)(b), __FILE__, __LINE__)

static inline void cmocka_int_equal(long long a, long long b, const char *file, int line) {
    if (a == b)
        return;
    printf("%s:%d: %lld is not %lld\n", file, line, a, b);
    longjmp(cmocka_end, CMOCKA_FAILED);
}

/* A separate function, so that none of its variables changes between setjmp and longjmp. */
static __attribute__((noinline)) int cmocka_run_one(const struct CMUnitTest *test) {
    void *state = NULL;
    switch (setjmp(cmocka_end)) {
    case CMOCKA_PASSED:
        test->run(&state);
        return CMOCKA_PASSED;
    case CMOCKA_FAILED:
        return CMOCKA_FAILED;
    default:
        return CMOCKA_SKIPPED;
    }
}

typedef int cmocka_fixture(void **state);
static inline int cmocka_run(const struct CMUnitTest *tests, size_t n, cmocka_fixture *setup) {
    static const char *const WORDS[] = {"passed", "FAILED", "skipped"};
    void *state = NULL;
    int n_failed = setup && setup(&state) != 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < n; i++) {
        int result = cmocka_run_one(&tests[i]);
        printf("%s %s\n", WORDS[result], tests[i].name);
        n_failed += result == CMOCKA_FAILED;
    }
    return n_failed;
}
/* No test has a teardown. */
#define cmocka_run_group_tests(tests, setup, teardown)                                                                 \
    cmocka_run(tests, sizeof(tests) / sizeof(tests)[0], (teardown) ? NULL : (setup))

#endif
