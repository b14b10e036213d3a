/* engine/base/readahead.c - a thread that asks the kernel to read the next ranges of a mapped file, up to a window. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/readahead.h"

#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

/* CHUNK_BYTES is the size of one madvise call. The kernel reads at most the device's read-ahead for a call, mostly 128
 * KiB, and drops the rest. */
enum { CHUNK_BYTES = 128 << 10, STACK_BYTES = 256 << 10 };

struct mr_readahead {
    size_t window_bytes, page_bytes;
    mr_thread *thread;
    mr_mutex lock; /* guards everything below */
    mr_cond changed;
    bool stop;
    const mr_read_range *ranges; /* NULL: nothing to read */
    int32_t n, at;
    int32_t n_ahead;     /* ranges from `at` on that have been requested */
    size_t ahead_bytes;  /* sum of their bytes */
    size_t offset_bytes; /* requested bytes of the range after them */
};

/* Takes the next chunk to request. Returns false when there is none. */
static bool next_chunk(mr_readahead *r, mr_read_range *out) {
    if (!r->ranges || r->n_ahead == r->n || r->ahead_bytes >= r->window_bytes)
        return false;
    const mr_read_range *range = &r->ranges[(r->at + r->n_ahead) % r->n];
    size_t left = range->bytes - r->offset_bytes;
    *out = (mr_read_range){range->data + r->offset_bytes, left < CHUNK_BYTES ? left : CHUNK_BYTES};
    r->offset_bytes += out->bytes;
    if (r->offset_bytes == range->bytes) {
        r->offset_bytes = 0;
        r->ahead_bytes += range->bytes;
        r->n_ahead++;
    }
    return true;
}

static void read_ahead(void *ctx) {
    mr_readahead *r = ctx;
    mr_read_range chunk;
    mr_mutex_lock(&r->lock);
    while (!r->stop) {
        if (!next_chunk(r, &chunk)) {
            (void)mr_cond_wait_until(&r->changed, &r->lock, MR_NEVER);
            continue;
        }
        mr_mutex_unlock(&r->lock);
        size_t before = (uintptr_t)chunk.data % r->page_bytes;
        (void)madvise((void *)(uintptr_t)(chunk.data - before), chunk.bytes + before, MADV_WILLNEED);
        mr_mutex_lock(&r->lock);
    }
    mr_mutex_unlock(&r->lock);
}

mr_status mr_readahead_create(size_t window_bytes, mr_readahead **out, mr_err *err) {
    mr_readahead *r = mr_alloc(sizeof *r);
    if (!r)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to read ahead");
    r->window_bytes = window_bytes;
    r->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    mr_mutex_init(&r->lock);
    mr_cond_init(&r->changed);
    mr_status status = mr_thread_create("mr-readahead", STACK_BYTES, read_ahead, r, &r->thread, err);
    if (status != MR_OK) {
        mr_readahead_destroy(r);
        return status;
    }
    *out = r;
    return MR_OK;
}

void mr_readahead_destroy(mr_readahead *r) {
    if (!r)
        return;
    mr_mutex_lock(&r->lock);
    r->stop = true;
    mr_cond_signal(&r->changed);
    mr_mutex_unlock(&r->lock);
    mr_thread_join(r->thread);
    mr_cond_deinit(&r->changed);
    mr_mutex_deinit(&r->lock);
    mr_free(r);
}

void mr_readahead_post(mr_readahead *r, const mr_read_range *ranges, int32_t n, int32_t at) {
    mr_mutex_lock(&r->lock);
    int32_t passed = r->ranges == ranges ? (at - r->at + n) % n : n;
    if (passed > r->n_ahead || r->ranges != ranges) {
        r->n_ahead = 0;
        r->ahead_bytes = r->offset_bytes = 0;
    } else {
        for (int32_t i = 0; i < passed; i++)
            r->ahead_bytes -= ranges[(r->at + i) % n].bytes;
        r->n_ahead -= passed;
    }
    r->ranges = ranges;
    r->n = n;
    r->at = at;
    mr_cond_signal(&r->changed);
    mr_mutex_unlock(&r->lock);
}

void mr_readahead_forget(mr_readahead *r, const mr_read_range *ranges) {
    mr_mutex_lock(&r->lock);
    if (r->ranges == ranges)
        r->ranges = NULL;
    mr_mutex_unlock(&r->lock);
}
