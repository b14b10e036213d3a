/* backends/cuda/kernels/take_rows.cu - copies rows, bit by bit. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_gather.h"
#include "backends/cuda/kernels/gpu_elements.h"

MR_KERNEL(cuda_take_rows, cuda_gather_args, CUDA_ELEMENT_THREADS) {
    int32_t i = gpu_element(), row = (int32_t)gpu_block();
    if (i < a.n && row < gpu_real_rows(a.step, a.rows))
        gpu_row<uint32_t>(a.y, row, a.y_row_bytes)[i] =
            ((const uint32_t *)(a.x + (size_t)a.from[row] * a.x_row_bytes))[i];
}
