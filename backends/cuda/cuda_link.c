/* backends/cuda/cuda_link.c - what links between devices need: addresses, a stream beside the one that computes, and
 * copies inside the device's memory. NCCL works on this stream. A transfer whose peer is slow or dead holds up later
 * transfers only, and no step. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cuda/cuda_device.h"

_Static_assert((int)sizeof(cuda_uuid) == (int)MR_DEVICE_UUID_BYTES, "the driver's uuid is the backend's");

static void link_uuid(const mr_backend *base, uint8_t out[MR_DEVICE_UUID_BYTES]) {
    memcpy(out, ((const cuda_backend *)base)->uuid.bytes, MR_DEVICE_UUID_BYTES);
}

static void *link_address(const mr_buffer *buffer) {
    return (void *)(uintptr_t)((const cuda_buffer *)(const void *)buffer)->address;
}

static mr_status link_enter(mr_backend *base, mr_err *err) {
    return cuda_enter((cuda_backend *)base, err);
}

static mr_status link_queue(mr_backend *base, void **out, mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    mr_status status = cuda_enter(be, err);
    if (status == MR_OK && !be->link_stream)
        status = cuda_check_new(be, be->driver->stream_create(&be->link_stream, CUDA_STREAM_NON_BLOCKING),
                                "create a stream", err);
    for (int32_t i = 0; i < MR_LINK_MARKS && status == MR_OK; i++)
        if (!be->link_marks[i])
            status = cuda_check_new(be, be->driver->event_create(&be->link_marks[i], CUDA_EVENT_DEFAULT),
                                    "create an event", err);
    if (status == MR_OK)
        *out = be->link_stream;
    return status;
}

void cuda_link_deinit(cuda_backend *be) {
    for (int32_t i = 0; i < MR_LINK_MARKS; i++)
        if (be->link_marks[i])
            (void)be->driver->event_destroy(be->link_marks[i]);
    if (be->link_stream)
        (void)be->driver->stream_destroy(be->link_stream);
}

static mr_status link_mark(mr_backend *base, uint64_t *out, mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    mr_status status = cuda_enter(be, err);
    if (status != MR_OK)
        return status;
    if (!be->link_stream || be->n_link_marks - be->n_link_reached >= MR_LINK_MARKS)
        return mr_err_set(err, MR_E_INTERNAL, "%s: more than %d marks of links", be->info.name, MR_LINK_MARKS);
    status = cuda_check(be, be->driver->event_record(be->link_marks[be->n_link_marks % MR_LINK_MARKS], be->link_stream),
                        "record an event of a link", err);
    if (status == MR_OK)
        *out = ++be->n_link_marks;
    return status;
}

/* Mark n is the event at n - 1. Marks are reached in their order. */
static mr_status link_reached(mr_backend *base, uint64_t mark, bool *out, mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    *out = mark <= be->n_link_reached;
    if (*out)
        return MR_OK;
    mr_status status = cuda_enter(be, err);
    if (status != MR_OK)
        return status;
    cuda_result result = be->driver->event_query(be->link_marks[(mark - 1) % MR_LINK_MARKS]);
    if (result == CUDA_NOT_READY)
        return MR_OK;
    status = cuda_check(be, result, "ask for an event of a link", err);
    if (status == MR_OK) {
        be->n_link_reached = mark;
        *out = true;
    }
    return status;
}

static mr_status link_copy(mr_backend *base, mr_buffer *dst, size_t dst_offset, const mr_buffer *src, size_t src_offset,
                           size_t bytes, mr_fence *out, mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    cuda_address to = ((const cuda_buffer *)dst)->address + dst_offset;
    cuda_address from = ((const cuda_buffer *)(const void *)src)->address + src_offset;
    mr_status status = cuda_check_range(dst, dst_offset, bytes, err);
    if (status == MR_OK)
        status = cuda_check_range(src, src_offset, bytes, err);
    if (status == MR_OK)
        status = cuda_enter(be, err);
    if (status == MR_OK)
        status = cuda_record_settle(be, from, bytes, err);
    if (status == MR_OK)
        status = cuda_record_settle(be, to, bytes, err);
    if (status == MR_OK && bytes > 0)
        status = cuda_check(be, be->driver->memcpy_dtod_async(to, from, bytes, be->stream), "copy on the device", err);
    if (status == MR_OK)
        *out = cuda_queue_fence(be);
    return status;
}

const mr_backend_link_ops cuda_link_ops = {
    .uuid = link_uuid,
    .address = link_address,
    .enter = link_enter,
    .queue = link_queue,
    .mark = link_mark,
    .reached = link_reached,
    .copy = link_copy,
};
