/* Pages of a mapped file are read into the page cache before their use. */
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/readahead.h"
#include "tests/support/test.h"

enum { RANGE = 1 << 20, N = 6, PAGE = 4096, ODD = 1000, PATIENCE_S = 20 };

typedef struct file {
    int fd;
    uint8_t *data;
    mr_read_range ranges[N];
} file;

/* A mapped file of N ranges that is not in the page cache; false where the file system keeps it there. */
static bool file_make(file *f) {
    static uint8_t block[RANGE];
    char path[] = "readahead_XXXXXX"; /* not in /tmp, because /tmp may be a tmpfs */
    f->fd = mkstemp(path);
    assert_true(f->fd >= 0);
    unlink(path);
    memset(block, 7, sizeof block);
    for (int i = 0; i < N; i++)
        assert_int_equal(write(f->fd, block, RANGE), RANGE);
    assert_int_equal(fsync(f->fd), 0);
    posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    f->data = mmap(NULL, (size_t)N * RANGE, PROT_READ, MAP_SHARED, f->fd, 0);
    assert_true(f->data != MAP_FAILED);
    for (int i = 0; i < N; i++)
        f->ranges[i] = (mr_read_range){f->data + (size_t)i * RANGE + ODD, RANGE - 2 * ODD};
    unsigned char in[N * RANGE / PAGE];
    assert_int_equal(mincore(f->data, (size_t)N * RANGE, in), 0);
    for (size_t i = 0; i < sizeof in; i++)
        if (in[i] & 1)
            return false;
    return true;
}

static void file_free(file *f) {
    munmap(f->data, (size_t)N * RANGE);
    close(f->fd);
}

/* Pages of range i that are in the page cache. */
static int pages_in(const file *f, int i) {
    unsigned char in[RANGE / PAGE];
    int n = 0;
    assert_int_equal(mincore(f->data + (size_t)i * RANGE, RANGE, in), 0);
    for (int p = 0; p < RANGE / PAGE; p++)
        n += in[p] & 1;
    return n;
}

static void await(const file *f, int i) {
    int64_t end_ns = mr_clock_now_ns() + PATIENCE_S * MR_NS_PER_S;
    while (pages_in(f, i) < RANGE / PAGE) {
        if (mr_clock_now_ns() > end_ns)
            fail_msg("range %d: %d of %d pages were read", i, pages_in(f, i), RANGE / PAGE);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void test_ranges_are_read_in_a_ring(void **state) {
    (void)state;
    file f;
    mr_readahead *r = NULL;
    if (!file_make(&f)) {
        file_free(&f);
        skip();
    }
    assert_int_equal(mr_readahead_create(2 * RANGE - 4 * ODD, &r, NULL), MR_OK);
    mr_readahead_post(r, f.ranges, N, 4); /* ranges 4 and 5 fill the window */
    await(&f, 4);
    await(&f, 5);
    assert_int_equal(pages_in(&f, 2), 0);
    mr_readahead_post(r, f.ranges, N, 4);
    mr_readahead_post(r, f.ranges, N, 5);
    await(&f, 0); /* the window continues at the first range */
    mr_readahead_post(r, f.ranges, N, 2);
    await(&f, 3);
    mr_readahead_forget(r, f.ranges + 1); /* ranges that were not posted */
    mr_readahead_post(r, f.ranges, N, 0);
    await(&f, 1);
    mr_readahead_forget(r, f.ranges);
    mr_readahead_destroy(r);
    file_free(&f);
}

static void test_failing_allocations(void **state) {
    (void)state;
    mr_status status = MR_E_NO_MEMORY;
    mr_readahead *r = NULL;
    for (int n = 0; status != MR_OK; n++) {
        assert_true(n < 10 && status == MR_E_NO_MEMORY && !r);
        mr_mem_fail_at(n);
        status = mr_readahead_create(RANGE, &r, NULL);
        mr_mem_fail_at(-1);
    }
    mr_readahead_destroy(r);
    mr_readahead_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges_are_read_in_a_ring),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
