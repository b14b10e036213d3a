/* backends/cpu/cpu_state.c - changes block tables, and copies KV blocks. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_internal.h"

void cpu_run_table_write(const cpu_node *n, int32_t n_entries) {
    const int32_t *slots = cpu_int_row(n->in[0], 0), *indices = cpu_int_row(n->in[1], 0);
    const int32_t *blocks = cpu_int_row(n->in[2], 0);
    for (int32_t i = 0; i < n_entries; i++)
        cpu_int_row(n->in[3], slots[i])[indices[i]] = blocks[i];
}

void cpu_run_kv_copy(const cpu_node *n, int32_t n_copies, int32_t part) {
    const int32_t *from = cpu_int_row(n->in[0], 0), *to = cpu_int_row(n->in[1], 0);
    const int32_t *parts = cpu_int_row(n->in[3], 0);
    const mr_tensor *store = n->in[2];
    size_t block_bytes = (size_t)parts[part];
    uint8_t *blocks = cpu_data(store);
    for (int32_t p = 0; p < part; p++)
        blocks += (size_t)parts[p] * (size_t)store->ne[1];
    for (int32_t i = 0; i < n_copies; i++)
        if (from[i] != to[i])
            memcpy(blocks + (size_t)to[i] * block_bytes, blocks + (size_t)from[i] * block_bytes, block_bytes);
}
