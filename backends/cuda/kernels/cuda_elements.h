/* backends/cuda/kernels/cuda_elements.h - arguments of the kernels that compute element by element, for [n] elements of
 * the step's rows. gpu_block is the row, because a grid may have 2^31 - 1 blocks there, and gpu_block_y a part of 256
 * elements, of which there are at most 65535. y may be an input. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_ELEMENTS_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_ELEMENTS_H

#include "backends/cuda/kernels/cuda_step.h"

enum { CUDA_ELEMENT_THREADS = 256 };

/* y[r][i] = a[r][i] + b[r][i] */
typedef struct cuda_add_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t n;
    const uint8_t *a, *b; /* f32 */
    uint8_t *y;
    uint32_t a_row_bytes, b_row_bytes, y_row_bytes;
} cuda_add_args;

/* y[r][i] = a[r][i] + sigmoid(gate[r]) * b[r][i] */
typedef struct cuda_add_gated_args {
    cuda_add_args add;
    const float *gate; /* [rows] */
} cuda_add_gated_args;

/* SCALE: y[r][i] = x[r][i] * factor. SOFT_CAP: y[r][i] = factor * tanh(x[r][i] / factor), by rule C of
 * engine/NUMERICS.md. */
typedef struct cuda_scale_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t n;
    float factor;
    const uint8_t *x; /* f32 */
    uint8_t *y;
    uint32_t x_row_bytes, y_row_bytes;
} cuda_scale_args;

#endif
