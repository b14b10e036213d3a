/* backends/cuda/cuda_memory.c - the device's memory, and copies between it and the host. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_device.h"
#include "engine/base/mem.h"

#define MEMORY_HINT "hint: fewer layers on the device (--gpu-layers), or a smaller --ctx"

mr_status cuda_memory_alloc(cuda_backend *be, size_t bytes, const char *what, cuda_address *out, mr_err *err) {
    cuda_result result = be->driver->mem_alloc(out, bytes);
    size_t free_bytes = 0, total_bytes = 0;
    if (result != CUDA_OUT_OF_MEMORY)
        return cuda_check(be, result, "allocate memory", err);
    (void)be->driver->mem_get_info(&free_bytes, &total_bytes);
    return mr_err_set(err, MR_E_NO_MEMORY,
                      "%s has no memory for %s: %zu MiB are needed, %zu of %zu MiB are free; " MEMORY_HINT,
                      be->info.name, what, (bytes >> 20) + 1, free_bytes >> 20, total_bytes >> 20);
}

void cuda_memory_free(cuda_backend *be, cuda_address address) {
    if (address)
        (void)be->driver->mem_free(address);
}

mr_status cuda_buffer_create(mr_backend *base, size_t bytes, mr_buffer **out, mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    mr_status status = cuda_enter(be, err);
    if (status != MR_OK)
        return status;
    cuda_buffer *b = mr_alloc(sizeof *b);
    if (!b)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a buffer");
    b->base.bytes = bytes;
    if (bytes > be->info.memory_bytes - be->buffer_bytes)
        status = mr_err_set(err, MR_E_NO_MEMORY, "%s: a buffer of %zu MiB, but %zu of %zu MiB are in use; " MEMORY_HINT,
                            be->info.name, bytes >> 20, be->buffer_bytes >> 20, be->info.memory_bytes >> 20);
    else
        status = cuda_memory_alloc(be, bytes > 0 ? bytes : 1, "a buffer", &b->address, err);
    if (status != MR_OK) {
        mr_free(b);
        return status;
    }
    be->buffer_bytes += bytes;
    *out = &b->base;
    return MR_OK;
}

mr_status cuda_buffer_wrap(mr_backend *base, const void *host, size_t bytes, mr_buffer **out, mr_err *err) {
    (void)host;
    (void)bytes;
    (void)out;
    return mr_err_set(err, MR_E_UNSUPPORTED, "%s does not compute in the host's memory",
                      ((const cuda_backend *)base)->info.name);
}

void cuda_buffer_destroy(mr_backend *base, mr_buffer *buffer) {
    cuda_backend *be = (cuda_backend *)base;
    cuda_buffer *b = (cuda_buffer *)buffer;
    if (!b)
        return;
    cuda_record_drop(be, b->address, b->base.bytes);
    (void)be->driver->ctx_set_current(be->context);
    cuda_memory_free(be, b->address);
    be->buffer_bytes -= b->base.bytes;
    mr_free(b);
}

mr_status cuda_check_range(const mr_buffer *b, size_t offset, size_t bytes, mr_err *err) {
    if (offset > b->bytes || bytes > b->bytes - offset)
        return mr_err_set(err, MR_E_INTERNAL, "bytes %zu + %zu are outside a buffer of %zu", offset, bytes, b->bytes);
    return MR_OK;
}

/* What set and get begin with. */
static mr_status enter_copy(cuda_backend *be, const mr_buffer *b, size_t offset, size_t bytes, mr_err *err) {
    mr_status status = cuda_check_range(b, offset, bytes, err);
    return status == MR_OK ? cuda_enter(be, err) : status;
}

mr_status cuda_set(mr_backend *base, mr_buffer *buffer, size_t offset, const void *src, size_t bytes, mr_fence *out,
                   mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    cuda_address to = ((const cuda_buffer *)buffer)->address + offset;
    mr_status status = enter_copy(be, buffer, offset, bytes, err);
    if (status == MR_OK && bytes <= CUDA_MAX_PIECE_BYTES) {
        /* src has been read when the call returns; the piece needs no event. */
        status = cuda_record_put(be, to, src, bytes, err);
        if (status == MR_OK)
            *out = cuda_queue_fence(be);
        return status;
    }
    if (status == MR_OK)
        status = cuda_record_settle(be, to, bytes, err);
    if (status == MR_OK)
        status = cuda_check(be, be->driver->memcpy_htod_async(to, src, bytes, be->stream), "copy to the device", err);
    return status == MR_OK ? cuda_queue_copied(be, out, err) : status;
}

mr_status cuda_get(mr_backend *base, const mr_buffer *buffer, size_t offset, void *dst, size_t bytes, mr_fence *out,
                   mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    cuda_address from = ((const cuda_buffer *)(const void *)buffer)->address + offset;
    mr_status status = enter_copy(be, buffer, offset, bytes, err);
    if (status == MR_OK)
        status = cuda_record_settle(be, from, bytes, err);
    if (status == MR_OK && bytes > 0)
        status =
            cuda_check(be, be->driver->memcpy_dtoh_async(dst, from, bytes, be->stream), "copy from the device", err);
    return status == MR_OK ? cuda_queue_copied(be, out, err) : status;
}

mr_status cuda_pin(mr_backend *base, void *host, size_t bytes, mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    mr_status status = cuda_enter(be, err);
    if (status != MR_OK)
        return status;
    if (be->driver->mem_host_register(host, bytes, CUDA_HOST_REGISTER_PORTABLE) != CUDA_OK)
        return mr_err_set(err, MR_E_NO_MEMORY, "the driver pins no memory of %zu bytes at %p", bytes, host);
    return MR_OK;
}

void cuda_unpin(mr_backend *base, void *host) {
    cuda_backend *be = (cuda_backend *)base;
    (void)be->driver->ctx_set_current(be->context);
    (void)be->driver->mem_host_unregister(host);
}
