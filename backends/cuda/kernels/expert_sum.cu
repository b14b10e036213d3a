/* backends/cuda/kernels/expert_sum.cu - adds what the experts of a row computed, in routing order (rules X and X2). */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_experts.h"
#include "backends/cuda/kernels/gpu_elements.h"

MR_KERNEL(cuda_expert_sum, cuda_expert_sum_args, CUDA_ELEMENT_THREADS) {
    int32_t i = gpu_element(), row = (int32_t)gpu_block();
    if (i >= a.n || row >= gpu_real_rows(a.step, a.rows))
        return;
    const float *weight = gpu_row<const float>(a.routes, row, a.routes_row_bytes) + a.n_used;
    float sum = 0.0f;
    for (int32_t u = 0; u < a.n_used; u++)
        sum += gpu_read(weight + u) * gpu_read(gpu_row<const float>(a.y, row * a.n_used + u, a.y_row_bytes) + i);
    sum = gpu_row<const float>(a.add, row, a.add_row_bytes)[i] + sum;
    if (a.shared)
        sum += gpu_row<const float>(a.shared, row, a.shared_row_bytes)[i];
    gpu_row<float>(a.out, row, a.out_row_bytes)[i] = sum;
}
