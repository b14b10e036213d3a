/* backends/cuda/kernels/table_write.cu - writes entries of block tables. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_state.h"
#include "backends/cuda/kernels/gpu_rows.h"

MR_KERNEL(cuda_table_write, cuda_table_write_args, CUDA_TABLE_THREADS) {
    int32_t n = gpu_real_rows(a.step, a.rows), lane = (int32_t)gpu_lane();
    for (int32_t base = 0; base < n; base += 32) {
        int32_t i = base + lane;
        bool is_entry = i < n;
        uint64_t at = is_entry ? (uint64_t)a.slot[i] * a.table_row_bytes + (uint64_t)a.index[i] * 4 : UINT64_MAX;
        bool is_replaced = false; /* by a later entry of this turn */
        for (int later = 1; later < 32; later++) {
            uint64_t other = gpu_shuffle(at, (lane + later) % 32);
            is_replaced |= lane + later < 32 && other == at;
        }
        if (is_entry && !is_replaced)
            *(int32_t *)(a.table + at) = a.block[i];
        gpu_sync_warp(); /* a later turn writes later */
    }
}
