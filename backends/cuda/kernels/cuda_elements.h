/* backends/cuda/kernels/cuda_elements.h - arguments of the kernels that compute element by element. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_ELEMENTS_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_ELEMENTS_H

#include "backends/cuda/kernels/cuda_step.h"

enum { CUDA_ELEMENT_THREADS = 256 };

/* y[r][i] = a[r][i] op b[r][i], for [n] elements of the step's rows. A block row (gpu_block_y) has a row, a block 256
 * elements. */
typedef struct cuda_add_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t n;
    const uint8_t *a, *b; /* f32 */
    uint8_t *y;
    uint32_t a_row_bytes, b_row_bytes, y_row_bytes;
} cuda_add_args;

#endif
