/* backends/host_memory.h - buffers in the host's memory, for backends that compute there. These functions are entries
 * of mr_backend_ops (backends/backend.h). Every call is done when it returns, so every fence is reached. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_HOST_MEMORY_H
#define MR_BACKENDS_HOST_MEMORY_H

#include "backends/backend.h"

/* The structure of a backend that uses these functions begins with this one. */
typedef struct mr_host_backend {
    mr_backend base;
    mr_fence n_marks; /* also the fence of every call */
    int64_t mark_ns[MR_KEPT_MARKS];
} mr_host_backend;

/* The fence of a call that is done. */
static inline mr_fence mr_host_fence(const mr_backend *be) {
    return ((const mr_host_backend *)be)->n_marks;
}

mr_status mr_host_buffer_create(mr_backend *base, size_t bytes, mr_buffer **out, mr_err *err);
mr_status mr_host_buffer_wrap(mr_backend *base, const void *host, size_t bytes, mr_buffer **out, mr_err *err);
void mr_host_buffer_destroy(mr_backend *base, mr_buffer *buffer);
mr_status mr_host_set(mr_backend *base, mr_buffer *buffer, size_t offset, const void *src, size_t bytes, mr_fence *out,
                      mr_err *err);
mr_status mr_host_get(mr_backend *base, const mr_buffer *buffer, size_t offset, void *dst, size_t bytes, mr_fence *out,
                      mr_err *err);
mr_status mr_host_wait(mr_backend *base, mr_fence fence, int64_t deadline_ns, mr_err *err);
mr_status mr_host_mark(mr_backend *base, mr_fence *out, mr_err *err);
mr_status mr_host_fence_ns(mr_backend *base, mr_fence mark, int64_t *out_ns, mr_err *err);
/* The host needs no pinned memory: these two do nothing. */
mr_status mr_host_pin(mr_backend *base, void *host, size_t bytes, mr_err *err);
void mr_host_unpin(mr_backend *base, void *host);

/* MR_E_INTERNAL unless the bytes are inside the buffer. */
mr_status mr_host_check_range(const mr_buffer *buffer, size_t offset, size_t bytes, mr_err *err);

/* First byte of a placed tensor; NULL for NULL. */
static inline uint8_t *mr_host_data(const mr_tensor *t) {
    return t ? t->buffer->base + t->offset : NULL;
}

#endif
