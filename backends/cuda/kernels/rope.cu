/* backends/cuda/kernels/rope.cu - rotates pairs of elements of heads (rule R). The thread of a pair's first element
 * computes both, so y may be x. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_rope.h"
#include "backends/cuda/kernels/gpu_elements.h"

MR_KERNEL(cuda_rope, cuda_rope_args, CUDA_ELEMENT_THREADS) {
    int32_t i = gpu_element(), row = (int32_t)gpu_block();
    if (i >= a.n || row >= gpu_real_rows(a.step, a.rows))
        return;
    const float *x = gpu_row<const float>(a.x, row, a.x_row_bytes);
    const float *table = gpu_row<const float>(a.table, row, a.table_row_bytes);
    float *y = gpu_row<float>(a.y, row, a.y_row_bytes);
    int32_t at = i % a.head_dim - a.first, half = a.n_rot / 2;
    if (at < 0 || at >= a.n_rot) {
        if (x != y)
            memcpy(y + i, x + i, 4);
        return;
    }
    bool is_halves = a.pairs == MR_ROPE_HALVES;
    if (is_halves ? at >= half : at % 2 == 1)
        return;
    int32_t pair = is_halves ? at : at / 2, other = i + (is_halves ? half : 1);
    float x0 = x[i], x1 = x[other], c = table[pair], s = table[half + pair];
    y[i] = fmaf(x0, c, -(x1 * s));
    y[other] = fmaf(x0, s, x1 * c);
}
