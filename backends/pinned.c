/* backends/pinned.c - allocates host memory and pins it. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/pinned.h"

#include "engine/base/mem.h"

enum { ALIGNMENT = 64 };

mr_status mr_pinned_create(const mr_backends *backends, size_t bytes, mr_pinned *out, mr_err *err) {
    mr_pinned p = {.memory = mr_alloc(bytes + ALIGNMENT)};
    if (!p.memory)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu bytes that devices read", bytes);
    p.data = (uint8_t *)mr_round_up((uintptr_t)p.memory, ALIGNMENT);
    for (int32_t b = 0; b < backends->n && bytes > 0; b++)
        if (backends->at[b]->ops->pin(backends->at[b], p.data, bytes, NULL) == MR_OK)
            p.pinned[b] = backends->at[b];
    *out = p;
    return MR_OK;
}

void mr_pinned_destroy(mr_pinned *p) {
    for (int32_t b = 0; b < MR_MAX_BACKENDS; b++)
        if (p->pinned[b])
            p->pinned[b]->ops->unpin(p->pinned[b], p->data);
    mr_free(p->memory);
    *p = (mr_pinned){0};
}
