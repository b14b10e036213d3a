/* tests/support/queue.h - a bounded first-in first-out queue of fixed-size items, for any number of threads on each
 * side.
 * Owns:    the slots; items are copied in and out, and nothing is allocated after create.
 * Threads: thread-safe; destroy when no other thread is inside.
 * Errors:  MR_E_TIMEOUT: full (push) or empty (pop) until the deadline. MR_E_CANCELLED: closed; pop first returns the
 *          remaining items. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_QUEUE_H
#define MR_TESTS_SUPPORT_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct mr_queue mr_queue;

/* MR_E_INVALID: an item or the capacity is 0. */
MR_MUST_USE mr_status mr_queue_create(size_t item_bytes, size_t capacity_items, mr_queue **out_queue, mr_err *err);
void mr_queue_destroy(mr_queue *q);

/* Copies item in. try_push does not wait; push waits until deadline_ns (clock.h, MR_NEVER for no end). */
MR_MUST_USE mr_status mr_queue_try_push(mr_queue *q, const void *item);
MR_MUST_USE mr_status mr_queue_push(mr_queue *q, const void *item, int64_t deadline_ns);
/* Copies the oldest item out. out_item is written on success only. */
MR_MUST_USE mr_status mr_queue_try_pop(mr_queue *q, void *out_item);
MR_MUST_USE mr_status mr_queue_pop(mr_queue *q, void *out_item, int64_t deadline_ns);

/* Refuses further items and wakes all waiting threads. Items in the queue can still be popped. */
void mr_queue_close(mr_queue *q);
size_t mr_queue_count(mr_queue *q);

#endif
