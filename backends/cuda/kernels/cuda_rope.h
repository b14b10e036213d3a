/* backends/cuda/kernels/cuda_rope.h - arguments of the kernels of RoPE: rule R of engine/NUMERICS.md. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_ROPE_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_ROPE_H

#include "backends/cuda/kernels/cuda_step.h"
#include "engine/tensor/tensor.h"

enum { CUDA_ROPE_TABLE_THREADS = 64 }; /* of a block; each has a pair */

/* y[r] = cosines, then sines, of the half angles of position[r]. */
typedef struct cuda_rope_table_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t half;
    float magnitude;
    const uint8_t *angles; /* [MR_ROPE_ROWS][half] f32 */
    const int32_t *position;
    uint8_t *y; /* f32 [2 * half] */
    uint32_t angles_row_bytes, y_row_bytes;
} cuda_rope_table_args;

/* y[r] = x[r], with n_rot elements of each head rotated, from element first of the head on. A block has elements of one
 * row, as in cuda_elements.h. */
typedef struct cuda_rope_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t n, head_dim, first, n_rot;
    mr_rope_pairs pairs;
    const uint8_t *x, *table; /* f32 */
    uint8_t *y;               /* may be x */
    uint32_t x_row_bytes, table_row_bytes, y_row_bytes;
} cuda_rope_args;

#endif
