/* Arenas: blocks are zeroed, aligned and disjoint, budgets hold, and a failed allocation changes nothing. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/arena.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

static bool all_zero(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

/* Allocates blocks of many sizes and alignments, and dirties them; the bytes of no two may meet. */
static void fill(mr_arena *a, int rounds) {
    char *blocks[64];
    size_t sizes[64];
    for (int i = 0; i < rounds; i++) {
        size_t alignment = (size_t)1 << (i % 8), size = (size_t)(i * 37 % 301);
        char *p = mr_arena_alloc_aligned(a, size, alignment);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % alignment, 0);
        assert_true(all_zero(p, size));
        memset(p, i + 1, size);
        blocks[i] = p;
        sizes[i] = size;
    }
    for (int i = 0; i < rounds; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(blocks[i][k], i + 1);
}

static void test_blocks_are_zeroed_aligned_and_apart(void **state) {
    (void)state;
    mr_arena *a = NULL;
    assert_int_equal(mr_arena_create(1024, 0, &a, NULL), MR_OK);
    fill(a, 64);
    mr_arena_stats first = mr_arena_get_stats(a);
    /* After a reset the same work allocates no new memory, and gets zeroed memory again. */
    uint64_t n_allocs = mr_mem_thread_allocs();
    for (int i = 0; i < 3; i++) {
        mr_arena_reset(a);
        assert_int_equal(mr_arena_get_stats(a).used_bytes, 0);
        fill(a, 64);
    }
    assert_int_equal(mr_mem_thread_allocs(), n_allocs);
    assert_int_equal(mr_arena_get_stats(a).held_bytes, first.held_bytes);
    assert_true(mr_arena_get_stats(a).high_water_bytes >= first.used_bytes);
    mr_arena_destroy(a);
}

static void test_large_requests_get_their_own_chunk(void **state) {
    (void)state;
    mr_arena *a = NULL;
    assert_int_equal(mr_arena_create(256, 0, &a, NULL), MR_OK);
    char *small = mr_arena_alloc(a, 16), *large = mr_arena_alloc(a, 100000);
    assert_non_null(small);
    assert_non_null(large);
    memset(large, 1, 100000);
    assert_true(mr_arena_get_stats(a).held_bytes < 110000);
    mr_arena_destroy(a);
}

static void test_budget(void **state) {
    (void)state;
    mr_arena *a = NULL;
    assert_int_equal(mr_arena_create(4096, 10000, &a, NULL), MR_OK);
    size_t n = 0;
    while (mr_arena_alloc(a, 100))
        n++;
    assert_in_range(n, 80, 100);
    mr_arena_stats stats = mr_arena_get_stats(a);
    assert_true(stats.held_bytes <= 10000);
    assert_true(stats.high_water_bytes == stats.used_bytes && stats.used_bytes <= 10000);
    assert_null(mr_arena_alloc(a, 20000));
    mr_arena_reset(a);
    for (size_t i = 0; i < n; i++)
        assert_non_null(mr_arena_alloc(a, 100));
    assert_null(mr_arena_alloc(a, 100));
    mr_arena_destroy(a);
}

static void test_overflow_is_refused(void **state) {
    (void)state;
    mr_arena *a = NULL;
    assert_int_equal(mr_arena_create(0, 0, &a, NULL), MR_OK);
    assert_null(mr_arena_alloc(a, SIZE_MAX));
    assert_null(mr_arena_alloc(a, SIZE_MAX - 64));
    assert_null(mr_arena_alloc_array(a, SIZE_MAX / 2, 3));
    assert_non_null(mr_arena_alloc_array(a, 3, 7));
    assert_null(mr_arena_alloc(a, SIZE_MAX - 8));
    mr_arena_destroy(a);
}

static void test_strings(void **state) {
    (void)state;
    mr_arena *a = NULL;
    assert_int_equal(mr_arena_create(64, 0, &a, NULL), MR_OK);
    const char *s = "the quick brown fox jumps over the lazy dog, twice and then once more";
    assert_string_equal(mr_arena_strdup(a, s), s);
    assert_string_equal(mr_arena_strdup(a, ""), "");
    assert_string_equal(mr_arena_strndup(a, s, 9), "the quick");
    assert_string_equal(mr_arena_strndup(a, "ab", 9), "ab");
    mr_arena_destroy(a);
}

static void test_fixed_arena_never_calls_the_allocator(void **state) {
    (void)state;
    static char buf[4096];
    memset(buf, 0xff, sizeof buf);
    uint64_t n_allocs = mr_mem_thread_allocs();
    mr_arena *a = mr_arena_create_fixed(buf + 1, sizeof buf - 1);
    assert_non_null(a);
    for (int round = 0; round < 3; round++) {
        size_t n = 0;
        for (char *p; (p = mr_arena_alloc(a, 64)) != NULL; n++) {
            assert_true(p >= buf && p + 64 <= buf + sizeof buf);
            assert_true(all_zero(p, 64));
            memset(p, 0xff, 64);
        }
        assert_in_range(n, 60, 63);
        mr_arena_reset(a);
    }
    assert_int_equal(mr_arena_get_stats(a).held_bytes, sizeof buf - 1);
    mr_arena_destroy(a);
    assert_int_equal(mr_mem_thread_allocs(), n_allocs);
    for (size_t size = 0; size < 200; size++) {
        a = mr_arena_create_fixed(buf, size);
        if (a)
            assert_null(mr_arena_alloc(a, size));
    }
    assert_null(mr_arena_create_fixed(NULL, 0));
}

static void test_whole_arena_calls_the_allocator_once(void **state) {
    (void)state;
    mr_mem_fail_at(0);
    assert_null(mr_arena_create_whole(4096));
    mr_mem_fail_at(-1);
    assert_null(mr_arena_create_whole(1)); /* too small for the arena itself */
    uint64_t n_allocs = mr_mem_thread_allocs();
    mr_arena *a = mr_arena_create_whole(4096);
    assert_non_null(a);
    char *p = mr_arena_alloc(a, 2048);
    assert_non_null(p);
    assert_true(all_zero(p, 2048));
    assert_null(mr_arena_alloc(a, 4096));
    assert_int_equal(mr_mem_thread_allocs(), n_allocs + 1);
    mr_arena_destroy(a);
}

static void test_allocation_failures(void **state) {
    (void)state;
    for (int64_t n = 0; n < 4; n++) {
        mr_arena *a = NULL;
        mr_err err;
        mr_mem_fail_at(n);
        mr_status status = mr_arena_create(128, 0, &a, &err);
        int failed = status != MR_OK;
        for (int i = 0; i < 3 && a; i++)
            failed += mr_arena_alloc(a, 100) == NULL;
        mr_mem_fail_at(-1);
        assert_int_equal(failed, 1);
        if (a)
            assert_non_null(mr_arena_alloc(a, 100));
        mr_arena_destroy(a);
    }
    mr_arena_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_zeroed_aligned_and_apart),
        cmocka_unit_test(test_large_requests_get_their_own_chunk),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_overflow_is_refused),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_fixed_arena_never_calls_the_allocator),
        cmocka_unit_test(test_whole_arena_calls_the_allocator_once),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
