/* backends/cuda/kernels/expert_sum.cu - adds what the experts of a row computed, in routing order (rules X and X2). */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_experts.h"
#include "backends/cuda/kernels/gpu_elements.h"

MR_KERNEL(cuda_expert_sum, cuda_expert_sum_args, CUDA_ELEMENT_THREADS) {
    int32_t i = gpu_element(), row = (int32_t)gpu_block();
    if (i >= a.n || row >= gpu_real_rows(a.step, a.rows))
        return;
    const int32_t *expert = gpu_row<const int32_t>(a.routes, row, a.routes_row_bytes);
    const float *weight = (const float *)expert + a.n_used;
    float sum = 0.0f;
    for (int32_t u = 0; u < a.n_used; u++) {
        int32_t slot = row * a.n_used + u;
        bool is_other = a.places && a.places[expert[u]] < 0;
        const float *y = is_other ? gpu_row<const float>(a.others, slot, a.others_row_bytes)
                                  : gpu_row<const float>(a.y, slot, a.y_row_bytes);
        sum += gpu_read(weight + u) * gpu_read(y + i);
    }
    sum = gpu_row<const float>(a.add, row, a.add_row_bytes)[i] + sum;
    if (a.shared)
        sum += gpu_row<const float>(a.shared, row, a.shared_row_bytes)[i];
    gpu_row<float>(a.out, row, a.out_row_bytes)[i] = sum;
}
