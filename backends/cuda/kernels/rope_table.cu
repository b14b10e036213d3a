/* backends/cuda/kernels/rope_table.cu - cosines and sines of positions (rule R). An angle is a chain of products; each
 * thread computes its chain from the beginning, which is faster than waiting for another thread. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_rope.h"
#include "backends/cuda/kernels/gpu_rows.h"

MR_KERNEL(cuda_rope_table, cuda_rope_table_args, CUDA_ROPE_TABLE_THREADS) {
    int32_t i = (int32_t)(gpu_block_y() * CUDA_ROPE_TABLE_THREADS + gpu_thread()), row = (int32_t)gpu_block();
    if (i >= a.half || row >= gpu_real_rows(a.step, a.rows))
        return;
    const float *step = gpu_row<const float>(a.angles, MR_ROPE_STEP, a.angles_row_bytes);
    float theta = (float)a.position[row];
    for (int32_t k = 0; k <= i; k++)
        theta *= gpu_read(step + k);
    float own = theta / gpu_row<const float>(a.angles, MR_ROPE_FACTOR, a.angles_row_bytes)[i];
    float slow = own * gpu_row<const float>(a.angles, MR_ROPE_SLOW, a.angles_row_bytes)[i];
    float keep = own * gpu_row<const float>(a.angles, MR_ROPE_KEEP, a.angles_row_bytes)[i];
    double s, c;
    mr_sincos((double)(slow + keep), &s, &c);
    float *y = gpu_row<float>(a.y, row, a.y_row_bytes);
    y[i] = (float)c * a.magnitude;
    y[a.half + i] = (float)s * a.magnitude;
}
