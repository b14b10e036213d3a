/* backends/cuda/kernels/cuda_activations.h - arguments of the kernels whose result may be the activations of a product:
 * norms, gated units, conversions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_ACTIVATIONS_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_ACTIVATIONS_H

#include "backends/cuda/kernels/cuda_step.h"
#include "engine/tensor/tensor.h"

enum {
    CUDA_ACTIVATION_THREADS = 256,  /* of a block of QUANTIZE and GLU; each has four columns */
    CUDA_ACTIVATION_COLUMNS = 1024, /* of such a block */
    CUDA_NORM_THREADS = 512,
    CUDA_NORM_GROUPS = CUDA_NORM_THREADS / 16, /* most groups of a block of RMS_NORM: the 16 lanes of a sum each */
    CUDA_NORM_COLUMNS = 8192,                  /* columns that such a block keeps */
};

/* Rows of n columns. */
typedef struct cuda_activations {
    mr_type type; /* F32, BF16, or A8: then n is a multiple of 32 */
    int32_t n;
    uint8_t *data;
    uint32_t row_bytes;
} cuda_activations;

/* y = x. */
typedef struct cuda_quantize_args {
    const cuda_step *step;
    cuda_rows rows;
    const uint8_t *x; /* f32 */
    uint32_t x_row_bytes;
    cuda_activations y;
} cuda_quantize_args;

typedef struct cuda_glu_args {
    const cuda_step *step;
    cuda_rows rows;
    mr_glu glu;
    const uint8_t *gate, *up; /* f32 */
    uint32_t gate_row_bytes, up_row_bytes;
    cuda_activations y;
} cuda_glu_args;

/* The norm of n_groups groups of m columns in each row; the other columns are copied. Block b of a row has n_span
 * groups from b * n_span on, and the last block has the columns that are copied, too. n_span is at most
 * CUDA_NORM_GROUPS. With more than one block, n_span * m is a multiple of 32. It is at most CUDA_NORM_COLUMNS, or
 * n_span is 1. */
typedef struct cuda_rms_norm_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t m, n_groups, n_span;
    float eps;
    const uint8_t *x; /* f32; may be y.data if that is f32 */
    const float *w;   /* [m] */
    uint32_t x_row_bytes;
    cuda_activations y;
} cuda_rms_norm_args;

#endif
