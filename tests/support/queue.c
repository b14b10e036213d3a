// SPDX-License-Identifier: Apache-2.0
#include "tests/support/queue.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/thread.h"

struct mr_queue {
    mr_mutex lock; /* guards all fields below */
    mr_cond not_empty, not_full;
    size_t item_bytes, capacity;
    size_t head, count; /* items head .. head + count, modulo capacity */
    bool closed;
    char *items;
};

mr_status mr_queue_create(size_t item_bytes, size_t capacity_items, mr_queue **out_queue, mr_err *err) {
    if (item_bytes == 0 || capacity_items == 0)
        return mr_err_set(err, MR_E_INVALID, "a queue of %zu items of %zu bytes", capacity_items, item_bytes);
    mr_queue *q = mr_alloc(sizeof *q);
    char *items = mr_alloc_array(capacity_items, item_bytes);
    if (!q || !items) {
        mr_free(q);
        mr_free(items);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a queue of %zu items of %zu bytes", capacity_items,
                          item_bytes);
    }
    mr_mutex_init(&q->lock);
    mr_cond_init(&q->not_empty);
    mr_cond_init(&q->not_full);
    q->item_bytes = item_bytes;
    q->capacity = capacity_items;
    q->items = items;
    *out_queue = q;
    return MR_OK;
}

void mr_queue_destroy(mr_queue *q) {
    if (!q)
        return;
    mr_cond_deinit(&q->not_full);
    mr_cond_deinit(&q->not_empty);
    mr_mutex_deinit(&q->lock);
    mr_free(q->items);
    mr_free(q);
}

mr_status mr_queue_push(mr_queue *q, const void *item, int64_t deadline_ns) {
    mr_status status = MR_OK;
    mr_mutex_lock(&q->lock);
    while (!q->closed && q->count == q->capacity && status == MR_OK)
        if (deadline_ns <= 0 || !mr_cond_wait_until(&q->not_full, &q->lock, deadline_ns))
            status = MR_E_TIMEOUT;
    if (q->closed) {
        status = MR_E_CANCELLED;
    } else if (q->count < q->capacity) {
        status = MR_OK; /* an item may have been taken out just at the deadline */
        size_t room = q->capacity - q->head;
        size_t slot = q->count < room ? q->head + q->count : q->count - room;
        memcpy(q->items + slot * q->item_bytes, item, q->item_bytes);
        q->count++;
        mr_cond_signal(&q->not_empty);
    }
    mr_mutex_unlock(&q->lock);
    return status;
}

mr_status mr_queue_pop(mr_queue *q, void *out_item, int64_t deadline_ns) {
    mr_status status = MR_OK;
    mr_mutex_lock(&q->lock);
    while (!q->closed && q->count == 0 && status == MR_OK)
        if (deadline_ns <= 0 || !mr_cond_wait_until(&q->not_empty, &q->lock, deadline_ns))
            status = MR_E_TIMEOUT;
    if (q->count > 0) {
        status = MR_OK;
        memcpy(out_item, q->items + q->head * q->item_bytes, q->item_bytes);
        q->head = q->head + 1 < q->capacity ? q->head + 1 : 0;
        q->count--;
        mr_cond_signal(&q->not_full);
    } else if (q->closed) {
        status = MR_E_CANCELLED;
    }
    mr_mutex_unlock(&q->lock);
    return status;
}

mr_status mr_queue_try_push(mr_queue *q, const void *item) {
    return mr_queue_push(q, item, 0);
}

mr_status mr_queue_try_pop(mr_queue *q, void *out_item) {
    return mr_queue_pop(q, out_item, 0);
}

void mr_queue_close(mr_queue *q) {
    mr_mutex_lock(&q->lock);
    q->closed = true;
    mr_cond_broadcast(&q->not_empty);
    mr_cond_broadcast(&q->not_full);
    mr_mutex_unlock(&q->lock);
}

size_t mr_queue_count(mr_queue *q) {
    mr_mutex_lock(&q->lock);
    size_t n = q->count;
    mr_mutex_unlock(&q->lock);
    return n;
}
