/* backends/cuda/kernels/embed.cu - rows of an embedding table as numbers (rule E). A thread unpacks one element. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_gather.h"
#include "backends/cuda/kernels/gpu_elements.h"
#include "backends/cuda/kernels/gpu_values.h"

MR_KERNEL(cuda_embed, cuda_gather_args, CUDA_ELEMENT_THREADS) {
    int32_t i = gpu_element(), row = (int32_t)gpu_block();
    if (i < a.n && row < gpu_real_rows(a.step, a.rows))
        gpu_row<float>(a.y, row, a.y_row_bytes)[i] = gpu_value(a.type, a.x + (size_t)a.from[row] * a.x_row_bytes, i);
}
