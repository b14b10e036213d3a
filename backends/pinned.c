/* backends/pinned.c - allocates host memory and pins it. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/pinned.h"

#include "engine/base/mem.h"

enum { ALIGNMENT = 64 };

void mr_pinned_borrow(const mr_backends *backends, void *host, size_t bytes, mr_pinned *out) {
    mr_pinned p = {.data = host};
    for (int32_t b = 0; b < backends->n && bytes > 0; b++)
        if (backends->at[b]->ops->pin(backends->at[b], host, bytes, NULL) == MR_OK)
            p.pinned[b] = backends->at[b];
    *out = p;
}

mr_status mr_pinned_create(const mr_backends *backends, size_t bytes, mr_pinned *out, mr_err *err) {
    void *memory = mr_alloc(bytes + ALIGNMENT);
    if (!memory)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu bytes that devices read", bytes);
    mr_pinned_borrow(backends, (void *)mr_round_up((uintptr_t)memory, ALIGNMENT), bytes, out);
    out->memory = memory;
    return MR_OK;
}

void mr_pinned_destroy(mr_pinned *p) {
    for (int32_t b = 0; b < MR_MAX_BACKENDS; b++)
        if (p->pinned[b])
            p->pinned[b]->ops->unpin(p->pinned[b], p->data);
    mr_free(p->memory);
    *p = (mr_pinned){0};
}
