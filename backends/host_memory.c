/* backends/host_memory.c - buffers in the host's memory. The CPU and the BLAS backend both use these functions, so a
 * tensor in a buffer of one backend can be read by the other. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/host_memory.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

mr_status mr_host_buffer_create(mr_backend *base, size_t bytes, mr_buffer **out, mr_err *err) {
    (void)base;
    mr_buffer *b = mr_alloc(sizeof *b);
    uint8_t *p = b ? mr_pages_alloc(bytes) : NULL;
    if (!p) {
        mr_free(b);
        size_t budget = mr_mem_get_stats().budget_bytes;
        if (budget)
            return mr_err_set(err, MR_E_NO_MEMORY,
                              "no memory for a buffer of %zu MiB (%zu of %zu MiB of the budget are in use); hint: more "
                              "stages, a smaller --ctx or a larger --mem",
                              bytes >> 20, mr_mem_get_stats().live_bytes >> 20, budget >> 20);
        return mr_err_set(err, MR_E_NO_MEMORY,
                          "no memory for a buffer of %zu MiB; hint: cut the model into more stages, or a smaller --ctx",
                          bytes >> 20);
    }
    *b = (mr_buffer){.base = p, .bytes = bytes};
    *out = b;
    return MR_OK;
}

mr_status mr_host_buffer_wrap(mr_backend *base, const void *host, size_t bytes, mr_buffer **out, mr_err *err) {
    (void)base;
    mr_buffer *b = mr_alloc(sizeof *b);
    if (!b)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a buffer");
    *b = (mr_buffer){.base = (uint8_t *)(uintptr_t)host, .bytes = bytes, .wrapped = true};
    *out = b;
    return MR_OK;
}

void mr_host_buffer_destroy(mr_backend *base, mr_buffer *b) {
    (void)base;
    if (!b)
        return;
    if (!b->wrapped)
        mr_pages_free(b->base, b->bytes);
    mr_free(b);
}

mr_status mr_host_check_range(const mr_buffer *b, size_t offset, size_t bytes, mr_err *err) {
    size_t end;
    if (!mr_add_size(offset, bytes, &end) || end > b->bytes)
        return mr_err_set(err, MR_E_INTERNAL, "bytes %zu + %zu are outside a buffer of %zu", offset, bytes, b->bytes);
    return MR_OK;
}

mr_status mr_host_set(mr_backend *base, mr_buffer *b, size_t offset, const void *src, size_t bytes, mr_fence *out,
                      mr_err *err) {
    mr_status status = mr_host_check_range(b, offset, bytes, err);
    if (status != MR_OK)
        return status;
    if (b->wrapped)
        return mr_err_set(err, MR_E_INTERNAL, "a wrapped buffer is read-only");
    memcpy(b->base + offset, src, bytes);
    *out = mr_host_fence(base);
    return MR_OK;
}

mr_status mr_host_get(mr_backend *base, const mr_buffer *b, size_t offset, void *dst, size_t bytes, mr_fence *out,
                      mr_err *err) {
    mr_status status = mr_host_check_range(b, offset, bytes, err);
    if (status != MR_OK)
        return status;
    memcpy(dst, b->base + offset, bytes);
    *out = mr_host_fence(base);
    return MR_OK;
}

mr_status mr_host_wait(mr_backend *base, mr_fence fence, int64_t deadline_ns, mr_err *err) {
    (void)base;
    (void)fence;
    (void)deadline_ns;
    (void)err;
    return MR_OK; /* set and get are done when they return */
}

mr_status mr_host_mark(mr_backend *base, mr_fence *out, mr_err *err) {
    mr_host_backend *be = (mr_host_backend *)base;
    (void)err;
    *out = ++be->n_marks;
    be->mark_ns[*out % MR_KEPT_MARKS] = mr_clock_now_ns();
    return MR_OK;
}

mr_status mr_host_fence_ns(mr_backend *base, mr_fence mark, int64_t *out_ns, mr_err *err) {
    const mr_host_backend *be = (const mr_host_backend *)base;
    if (mark == 0 || mark > be->n_marks || be->n_marks - mark >= MR_KEPT_MARKS)
        return mr_err_set(err, MR_E_INVALID, "the time of mark %llu of %llu is not kept", (unsigned long long)mark,
                          (unsigned long long)be->n_marks);
    *out_ns = be->mark_ns[mark % MR_KEPT_MARKS];
    return MR_OK;
}

mr_status mr_host_pin(mr_backend *base, void *host, size_t bytes, mr_err *err) {
    (void)base;
    (void)host;
    (void)bytes;
    (void)err;
    return MR_OK;
}

void mr_host_unpin(mr_backend *base, void *host) {
    (void)base;
    (void)host;
}
