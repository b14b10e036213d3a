/* backends/cuda/kernels/glu.cu - gated linear units (rule G), with the activations of the next product as result. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_activations.h"
#include "engine/tensor/glu.h"

MR_KERNEL(cuda_glu, cuda_glu_args, CUDA_ACTIVATION_THREADS) {
    int32_t row = (int32_t)gpu_block();
    int32_t block = (int32_t)((gpu_block_y() * CUDA_ACTIVATION_THREADS + gpu_thread()) / 8);
    if (row >= gpu_real_rows(a.step, a.rows))
        return;
    float gate[4], up[4];
    gpu_take(gpu_row<const float>(a.gate, row, a.gate_row_bytes), a.y.n, block, gate);
    gpu_take(gpu_row<const float>(a.up, row, a.up_row_bytes), a.y.n, block, up);
    MR_UNROLL
    for (int i = 0; i < 4; i++)
        gate[i] = mr_glu_one(gate[i], up[i], a.glu);
    gpu_put(a.y, row, block, gate);
}
