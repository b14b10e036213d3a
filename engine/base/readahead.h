/* engine/base/readahead.h - reads pages of a mapped file before they are needed, on a thread of its own, so that the
 * threads that compute do not wait for the disk.
 * Owns:    the thread. Borrows: the ranges of the last post.
 * Threads: caller serialises. The thread never holds the lock of post while it reads.
 * Errors:  create alone: MR_E_NO_MEMORY. A page that cannot be read is skipped; the thread that touches the page gets
 *          the error. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_READAHEAD_H
#define MR_ENGINE_BASE_READAHEAD_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct mr_readahead mr_readahead;

/* Bytes of a file mapping, at any address. */
typedef struct mr_read_range {
    const uint8_t *data;
    size_t bytes;
} mr_read_range;

/* The thread reads at most window_bytes and one range ahead. */
MR_MUST_USE mr_status mr_readahead_create(size_t window_bytes, mr_readahead **out, mr_err *err);
void mr_readahead_destroy(mr_readahead *r); /* NULL is accepted */

/* Says that range `at` of n is needed now. The ranges after it will be needed next, and after the last one the first
 * again. ranges must stay valid until a post with other ranges, or forget. */
void mr_readahead_post(mr_readahead *r, const mr_read_range *ranges, int32_t n, int32_t at);
/* If ranges are those of the last post, they are not used any more after this call. */
void mr_readahead_forget(mr_readahead *r, const mr_read_range *ranges);

#endif
