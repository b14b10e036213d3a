/* backends/cuda/kernels/active.cu - lists the active neurons of a partition (rule S). A thread has a neuron. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_sparse.h"

MR_KERNEL(cuda_active, cuda_active_args, CUDA_SPARSE_THREADS) {
    MR_SHARED int32_t counts[CUDA_SPARSE_THREADS / 32];
    int32_t part = (int32_t)gpu_block(), n_rows = gpu_real_rows(a.step, a.rows);
    int32_t neuron = part * MR_PARTITION + (int32_t)gpu_thread();
    bool any = false;
    MR_NO_UNROLL
    for (int32_t row = 0; row < n_rows; row++) {
        const float *scores = gpu_row<const float>(a.scores, row, a.scores_row_bytes);
        bool is_active = neuron < a.n && mr_is_active(gpu_read(scores + neuron), a.threshold);
        uint32_t word = gpu_ballot(is_active);
        if (gpu_lane() == 0)
            a.active.sets[((size_t)row * (size_t)a.n_parts + (size_t)part) * MR_PARTITION_WORDS + gpu_warp()] = word;
        any = any || is_active;
    }
    gpu_places p = gpu_find_place(any, counts);
    if (any)
        a.active.neurons[part * MR_PARTITION + p.own] = neuron;
    if (gpu_thread() == 0)
        a.active.counts[part] = p.n;
}
