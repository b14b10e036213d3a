/* Memory: impossible sizes are refused, budgets hold, freed memory goes back to the system, and the nth allocation
 * fails when other tests ask for it. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

static void test_sizes_nobody_has_are_refused(void **state) {
    (void)state;
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 64, SIZE_MAX / 2, (size_t)1 << 48};
    char *p = mr_alloc(16);
    strcpy(p, "kept");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_null(mr_alloc(sizes[i]));
        assert_null(mr_alloc_array(sizes[i], 8));
        assert_null(mr_realloc(p, sizes[i]));
        assert_string_equal(p, "kept");
    }
    assert_null(mr_pages_alloc(SIZE_MAX));
    mr_free(p);
}

static void test_blocks_are_zeroed(void **state) {
    (void)state;
    char *p = mr_alloc_array(100, 3);
    for (int i = 0; i < 300; i++)
        assert_int_equal(p[i], 0);
    mr_free(p);
    mr_free(mr_alloc(0));
    mr_free(NULL);
}

static void test_pages_keep_to_the_budget(void **state) {
    (void)state;
    const size_t page = (size_t)2 << 20, rest = page - (64 << 10);
    mr_mem_set_budget(2 * page);
    char *a = mr_pages_alloc(page + 1), *b = mr_pages_alloc(rest);
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal((uintptr_t)a % page, 0);
    a[page] = 1;
    assert_int_equal(mr_mem_get_stats().live_bytes, 2 * page);
    assert_null(mr_pages_alloc(1));
    mr_pages_free(b, rest);
    b = mr_pages_alloc(1);
    assert_non_null(b);
    assert_int_equal(b[0], 0);
    mr_pages_free(b, 1);
    mr_pages_free(a, page + 1);
    mr_pages_free(NULL, 5);
    assert_int_equal(mr_mem_get_stats().live_bytes, 0);
    mr_mem_set_budget(0);
}

enum { N_SMALL = 1000000, SMALL_BYTES = 24 };

/* Of this process; 0: not known. */
static long resident_mib(void) {
    long all, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%ld %ld", &all, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident >> 8; /* pages of 4 KiB */
}

typedef struct residence {
    long before_mib, full_mib, after_mib;
} residence;

/* Small blocks, as in a tree of JSON, and nothing above them in the heap of this thread. */
static void fill_and_trim(void *ctx) {
    residence *r = ctx;
    void **small = mr_alloc_array(N_SMALL, sizeof *small);
    r->before_mib = resident_mib(); /* its file is the first block of the heap */
    for (int i = 0; i < N_SMALL && small; i++)
        small[i] = mr_alloc(SMALL_BYTES);
    r->full_mib = resident_mib();
    for (int i = 0; i < N_SMALL && small; i++)
        mr_free(small[i]);
    mr_free(small);
    mr_mem_trim();
    r->after_mib = resident_mib();
}

static void test_freed_memory_goes_back(void **state) {
    (void)state;
#if MR_TEST_ASAN || MR_TEST_TSAN || !defined(__GLIBC__)
    skip(); /* another allocator, which keeps what is freed */
#endif
    residence r;
    mr_thread *t;
    mr_err err;
    mr_mem_keep_little();
    expect_ok(mr_thread_create("small", 0, fill_and_trim, &r, &t, &err), &err);
    mr_thread_join(t);
    assert_true(r.before_mib > 0 && r.full_mib > r.before_mib + 30);
    assert_true(r.after_mib < r.before_mib + 4);
}

static void test_the_nth_allocation_fails_once(void **state) {
    (void)state;
    mr_mem_fail_at(1);
    void *p[3] = {mr_alloc(1), mr_alloc(1), mr_alloc(1)};
    assert_non_null(p[0]);
    assert_null(p[1]);
    assert_non_null(p[2]);
    mr_free(p[0]);
    mr_free(p[2]);
    uint64_t before = mr_mem_thread_allocs();
    char *s = mr_strndup("abc", 2);
    assert_string_equal(s, "ab");
    mr_free(s);
    assert_true(mr_mem_thread_allocs() == before + 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_nobody_has_are_refused),  cmocka_unit_test(test_blocks_are_zeroed),
        cmocka_unit_test(test_pages_keep_to_the_budget),      cmocka_unit_test(test_freed_memory_goes_back),
        cmocka_unit_test(test_the_nth_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
