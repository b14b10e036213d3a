/* backends/cuda/kernels/scale.cu - a tensor times a number (rule C). */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_elements.h"

MR_KERNEL(cuda_scale, cuda_scale_args, CUDA_ELEMENT_THREADS) {
    int32_t i = gpu_element(), row = (int32_t)gpu_block();
    if (i < a.n && row < gpu_real_rows(a.step, a.rows))
        gpu_row<float>(a.y, row, a.y_row_bytes)[i] = gpu_row<const float>(a.x, row, a.x_row_bytes)[i] * a.factor;
}
