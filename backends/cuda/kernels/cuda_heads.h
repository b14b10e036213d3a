/* backends/cuda/kernels/cuda_heads.h - arguments of the kernel that prepares the products of heads. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_HEADS_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_HEADS_H

#include "backends/cuda/kernels/cuda_activations.h"

enum { CUDA_HEADS_THREADS = 256 };

/* A block has a head of a row: gpu_block is the row, gpu_block_y the head. The first a.n elements of the head become
 * activations; the other n_kept are copied behind the n_out results of the head. */
typedef struct cuda_heads_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t n_kept, n_out;
    const uint8_t *x;   /* f32 [heads][a.n + n_kept] */
    uint8_t *y;         /* f32 [heads][n_out + n_kept] */
    cuda_activations a; /* of head 0; the next head's lie a_head_bytes behind */
    uint32_t x_row_bytes, y_row_bytes, a_head_bytes;
} cuda_heads_args;

#endif
