/* backends/cuda/kernels/expert_rows.cu - lists the slots of each expert in ascending order. A warp has an expert, and
 * reads all routes twice: first it counts the slots of the experts before its own, then it writes its list. So warps
 * need nothing from each other. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_experts.h"
#include "backends/cuda/kernels/gpu_rows.h"

/* The number of the slot's expert among those that have lists; above all of them where the expert has none. */
MR_INLINE uint32_t expert_of(const cuda_expert_rows_args &a, int32_t slot) {
    int32_t expert = gpu_row<const int32_t>(a.routes, slot / a.n_used, a.routes_row_bytes)[slot % a.n_used];
    return (uint32_t)(a.places ? a.places[expert] : expert);
}

MR_KERNEL(cuda_expert_rows, cuda_expert_rows_args, CUDA_LIST_THREADS) {
    int32_t expert = (int32_t)(gpu_block() * CUDA_LIST_EXPERTS + gpu_warp()), lane = (int32_t)gpu_lane();
    int32_t n_slots = gpu_real_rows(a.step, a.rows) * a.n_used;
    if (expert >= a.n)
        return;
    uint32_t n_before = 0;
    for (int32_t slot = lane; slot < n_slots; slot += 32)
        n_before += expert_of(a, slot) < (uint32_t)expert;
    int32_t at = (int32_t)gpu_warp_sum(n_before);
    if (lane == 0)
        a.first[expert] = at;
    for (int32_t base = 0; base < n_slots; base += 32) {
        int32_t slot = base + lane;
        bool is_own = slot < n_slots && expert_of(a, slot) == (uint32_t)expert;
        uint32_t own = gpu_ballot(is_own);
        if (is_own) {
            int32_t to = at + __builtin_popcount(own & ((1u << lane) - 1));
            a.slots[to] = slot;
            a.of_rows[to] = slot / a.n_used;
        }
        at += __builtin_popcount(own);
    }
    if (lane == 0 && expert == a.n - 1)
        a.first[a.n] = at;
}
