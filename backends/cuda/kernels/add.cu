/* backends/cuda/kernels/add.cu - the sum of two tensors. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_elements.h"

MR_KERNEL(cuda_add, cuda_add_args, CUDA_ELEMENT_THREADS) {
    int32_t i = gpu_element(), row = (int32_t)gpu_block();
    if (i < a.n && row < gpu_real_rows(a.step, a.rows))
        gpu_row<float>(a.y, row, a.y_row_bytes)[i] =
            gpu_row<const float>(a.a, row, a.a_row_bytes)[i] + gpu_row<const float>(a.b, row, a.b_row_bytes)[i];
}
