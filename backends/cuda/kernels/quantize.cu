/* backends/cuda/kernels/quantize.cu - activations of a product: rule Q, or BF16 of rule M. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_activations.h"

MR_KERNEL(cuda_quantize, cuda_quantize_args, CUDA_ACTIVATION_THREADS) {
    int32_t row = (int32_t)gpu_block();
    int32_t block = (int32_t)((gpu_block_y() * CUDA_ACTIVATION_THREADS + gpu_thread()) / 8);
    if (row >= gpu_real_rows(a.step, a.rows))
        return;
    float v[4];
    gpu_take(gpu_row<const float>(a.x, row, a.x_row_bytes), a.y.n, block, v);
    gpu_put(a.y, row, block, v);
}
