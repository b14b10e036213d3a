/* backends/cuda/kernels/add_gated.cu - adds what a gate for each row lets through (rule C). */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_elements.h"

MR_KERNEL(cuda_add_gated, cuda_add_gated_args, CUDA_ELEMENT_THREADS) {
    const cuda_add_args &s = a.add;
    int32_t i = gpu_element(), row = (int32_t)gpu_block();
    if (i < s.n && row < gpu_real_rows(s.step, s.rows)) {
        float let_through = mr_sigmoidf(a.gate[row]) * gpu_row<const float>(s.b, row, s.b_row_bytes)[i];
        gpu_row<float>(s.y, row, s.y_row_bytes)[i] = gpu_row<const float>(s.a, row, s.a_row_bytes)[i] + let_through;
    }
}
