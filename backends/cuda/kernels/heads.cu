/* backends/cuda/kernels/heads.cu - prepares the products of heads (rule H of engine/NUMERICS.md): writes the part of
 * each head that its matrix multiplies as activations, and copies the rest. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_heads.h"
#include "backends/cuda/kernels/gpu_activations.h"

MR_KERNEL(cuda_heads, cuda_heads_args, CUDA_HEADS_THREADS) {
    int32_t row = (int32_t)gpu_block(), head = (int32_t)gpu_block_y(), k = a.a.n;
    if (row >= gpu_real_rows(a.step, a.rows))
        return;
    const float *x = gpu_row<const float>(a.x, row, a.x_row_bytes) + (size_t)head * (k + a.n_kept);
    float *y = gpu_row<float>(a.y, row, a.y_row_bytes) + (size_t)head * (a.n_out + a.n_kept);
    cuda_activations out = a.a;
    out.data += (size_t)head * a.a_head_bytes;
    /* A warp has four blocks of 32 elements, and does them together. */
    for (int32_t first = 4 * (int32_t)gpu_warp(); first * 32 < k; first += CUDA_HEADS_THREADS / 8) {
        int32_t block = first + (int32_t)gpu_lane() / 8;
        float v[4];
        gpu_take(x, k, block, v);
        gpu_put(out, row, block, v);
    }
    for (int32_t i = (int32_t)gpu_thread(); i < a.n_kept; i += CUDA_HEADS_THREADS)
        y[a.n_out + i] = x[k + i];
}
