/* engine/base/readahead.h - reads pages of a mapped file before they are needed, from a thread of its own, so that
 * nobody else waits for the disk.
 * Owns:    the thread. Borrows: the ranges of the last post.
 * Threads: caller serialises. post takes a lock that the thread never holds while it reads.
 * Errors:  create alone: MR_E_NO_MEMORY. Pages that cannot be read are not read: whoever touches them sees it. */
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

/* Reads at most window_bytes (and one range) ahead. */
MR_MUST_USE mr_status mr_readahead_create(size_t window_bytes, mr_readahead **out, mr_err *err);
void mr_readahead_destroy(mr_readahead *r); /* NULL is accepted */

/* Range `at` of n is needed now, then those behind it, and after the last the first again. ranges: in use until a post
 * with other ones, or forget. */
void mr_readahead_post(mr_readahead *r, const mr_read_range *ranges, int32_t n, int32_t at);
/* The ranges are used no more, if they are those of the last post. */
void mr_readahead_forget(mr_readahead *r, const mr_read_range *ranges);

#endif
