/* worker/stage/expert_order.c - completes the lists of a plan, which name the experts of devices, to orders of all
 * experts of each layer. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/expert_order.h"

#include <string.h>

#include "engine/base/mem.h"

/* Writes first[n], then all other experts. seen: [n_experts] scratch. */
static mr_status order_layer(const uint32_t *first, int32_t n, int32_t n_experts, bool *seen, int32_t *out,
                             mr_err *err) {
    int32_t at = 0;
    memset(seen, 0, (size_t)n_experts * sizeof *seen);
    for (int32_t i = 0; i < n; i++) {
        if (first[i] >= (uint32_t)n_experts || seen[first[i]])
            return mr_err_set(err, MR_E_PROTOCOL,
                              "the plan puts expert %u of a layer with %d on a device, or puts it there twice",
                              first[i], n_experts);
        seen[first[i]] = true;
        out[at++] = (int32_t)first[i];
    }
    for (int32_t e = 0; e < n_experts; e++)
        if (!seen[e])
            out[at++] = e;
    return MR_OK;
}

mr_status mr_expert_order_make(const uint32_t *held, const mr_devices_share *share, int32_t n_layers, int32_t n_experts,
                               int32_t **out, mr_err *err) {
    int32_t first = share->n_layers - share->n_host_experts, n = share->n_device_experts;
    int32_t *order = mr_alloc_array((size_t)n_layers * (size_t)n_experts, sizeof *order);
    bool *seen = mr_alloc_array((size_t)n_experts, sizeof *seen);
    mr_status status =
        order && seen ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the order of %d experts", n_experts);
    for (int32_t l = 0; l < n_layers && status == MR_OK; l++) {
        bool is_shared = l >= first && l < share->n_layers;
        status = order_layer(is_shared ? held + (size_t)(l - first) * (size_t)n : NULL, is_shared ? n : 0, n_experts,
                             seen, order + (size_t)l * (size_t)n_experts, err);
    }
    mr_free(seen);
    if (status != MR_OK) {
        mr_free(order);
        return status;
    }
    *out = order;
    return MR_OK;
}
