/* engine/model/staging.c - the ring of buffers. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/staging.h"

#include "engine/base/clock.h"

mr_status staging_init(staging *ring, const mr_backends *readers, size_t bytes, mr_err *err) {
    *ring = (staging){.bytes = bytes};
    return mr_pinned_create(readers, STAGING_SLOTS * bytes, &ring->memory, err);
}

static mr_status wait_for_reader(staging_slot *s, mr_err *err) {
    mr_backend *reader = s->reader;
    s->reader = NULL;
    return reader ? reader->ops->wait(reader, s->fence, MR_NEVER, err) : MR_OK;
}

mr_status staging_deinit(staging *ring, mr_err *err) {
    mr_status status = MR_OK;
    for (int i = 0; i < STAGING_SLOTS; i++) {
        mr_status end = wait_for_reader(&ring->slots[i], status == MR_OK ? err : NULL);
        status = status == MR_OK ? end : status;
    }
    mr_pinned_destroy(&ring->memory);
    *ring = (staging){0};
    return status;
}

mr_status staging_take(staging *ring, uint8_t **out, mr_err *err) {
    mr_status status = wait_for_reader(&ring->slots[ring->at], err);
    if (status == MR_OK)
        *out = ring->memory.data + (size_t)ring->at * ring->bytes;
    return status;
}

void staging_give(staging *ring, mr_backend *reader, mr_fence fence) {
    staging_slot *s = &ring->slots[ring->at];
    s->reader = reader;
    s->fence = fence;
    ring->at = (ring->at + 1) % STAGING_SLOTS;
}
