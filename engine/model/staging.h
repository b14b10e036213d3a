/* engine/model/staging.h - a ring of pinned buffers on the host that backends read: while they read one, the next one
 * is filled.
 *     staging_take(ring, &data, err);           // waits until nobody reads the buffer
 *     ... fill data, be->ops->set(be, ..., data, n, &fence, err) ...
 *     staging_give(ring, be, fence);
 * Owns:    its buffers. Borrows: the backends.
 * Threads: caller serialises.
 * Errors:  those of waits for a backend. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_MODEL_STAGING_H
#define MR_ENGINE_MODEL_STAGING_H

#include "backends/pinned.h"

enum { STAGING_SLOTS = 4 };

typedef struct staging_slot {
    mr_backend *reader; /* reads the buffer until the fence is reached; NULL: nobody */
    mr_fence fence;
} staging_slot;

typedef struct staging {
    mr_pinned memory; /* of all buffers */
    size_t bytes;     /* of each buffer */
    staging_slot slots[STAGING_SLOTS];
    int at; /* the slot that staging_take returns next */
} staging;

MR_MUST_USE mr_status staging_init(staging *ring, const mr_backends *readers, size_t bytes, mr_err *err);
/* Waits until no backend reads a buffer, then frees them. Returns the first error of a wait. {0} is accepted. */
MR_MUST_USE mr_status staging_deinit(staging *ring, mr_err *err);

MR_MUST_USE mr_status staging_take(staging *ring, uint8_t **out, mr_err *err);
/* The backend reads the buffer that was taken last until the fence is reached. */
void staging_give(staging *ring, mr_backend *reader, mr_fence fence);

#endif
