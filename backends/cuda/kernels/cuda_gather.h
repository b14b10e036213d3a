/* backends/cuda/kernels/cuda_gather.h - arguments of the kernels whose rows are rows of another tensor, named by a
 * list: y[r] = x[from[r]]. A block has elements of one row, as in cuda_elements.h. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_GATHER_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_GATHER_H

#include "backends/cuda/kernels/cuda_step.h"
#include "engine/tensor/tensor.h"

typedef struct cuda_gather_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t n;
    mr_type type;     /* of x: F32 for TAKE_ROWS, of the table for EMBED */
    const uint8_t *x; /* in the layout of the file */
    size_t x_row_bytes;
    const int32_t *from; /* [rows] */
    uint8_t *y;          /* f32 */
    uint32_t y_row_bytes;
} cuda_gather_args;

#endif
