/* backends/cuda/kernels/relu.cu - rule S: max(x, 0). */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_sparse.h"
#include "backends/cuda/kernels/gpu_elements.h"
#include "engine/tensor/relu.h"

MR_KERNEL(cuda_relu, cuda_relu_args, CUDA_ELEMENT_THREADS) {
    int32_t i = gpu_element(), row = (int32_t)gpu_block();
    if (i < a.n && row < gpu_real_rows(a.step, a.rows))
        gpu_row<float>(a.y, row, a.y_row_bytes)[i] = mr_relu(gpu_row<const float>(a.x, row, a.x_row_bytes)[i]);
}
