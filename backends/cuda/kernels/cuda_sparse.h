/* backends/cuda/kernels/cuda_sparse.h - arguments of the kernels of sparse feed-forward parts: rule S of
 * engine/NUMERICS.md. Matrices lie in the layout of the file, with a row for each neuron. A partition has 256
 * neurons. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_SPARSE_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_SPARSE_H

#include "backends/cuda/kernels/cuda_step.h"
#include "engine/tensor/tensor.h"

enum {
    CUDA_SPARSE_THREADS = 256, /* of a block of any of these kernels but RELU */
    /* Units of float matrices: a block has some active neurons of a partition, and some rows, which its warps share. */
    CUDA_SPARSE_FLOAT_NEURONS = 16,
    CUDA_SPARSE_FEW_ROWS = 8,
    CUDA_SPARSE_MANY_ROWS = 32,
    /* Units of quantised matrices. */
    CUDA_SPARSE_INT_NEURONS = 4,
    CUDA_SPARSE_INT_ROWS = 8,
    /* Units of a float matrix beside one of another type: a thread has a neuron and a row. */
    CUDA_SPARSE_PLAIN_ROWS = 1,
    /* Sums of rows: a thread has two columns. */
    CUDA_AXPY_COLUMNS = 2 * CUDA_SPARSE_THREADS,
    CUDA_AXPY_ROWS = 4, /* of a block, where a step may have more than one */
};

/* y[r][i] = max(x[r][i], 0), as in cuda_elements.h. */
typedef struct cuda_relu_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t n;
    const uint8_t *x; /* f32 */
    uint8_t *y;
    uint32_t x_row_bytes, y_row_bytes;
} cuda_relu_args;

/* The active neurons of a partition (gpu_block) in all rows. */
typedef struct cuda_active_args {
    const cuda_step *step;
    cuda_rows rows;     /* of scores */
    int32_t n, n_parts; /* neurons, partitions */
    float threshold;
    const uint8_t *scores; /* f32; those of neuron 0 in row 0 */
    uint32_t scores_row_bytes;
    mr_active active;
} cuda_active_args;

typedef struct cuda_sparse_matrix {
    const uint8_t *data; /* NULL: absent */
    uint64_t row_bytes;
    mr_type type;
} cuda_sparse_matrix;

/* Units of the neurons. gpu_block: a partition's active neurons from some place of the list on; gpu_block_y: rows. The
 * first block of a partition writes the zeros of its other neurons. */
typedef struct cuda_sparse_units_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t k, n, n_parts;          /* columns, neurons, partitions */
    cuda_sparse_matrix matrices[2]; /* gate, up */
    mr_relu_unit unit;
    const uint8_t *a; /* rows of mr_type_activation's type, aligned to 16 bytes */
    mr_active active;
    uint8_t *y; /* f32 [n] */
    uint32_t a_row_bytes, y_row_bytes;
} cuda_sparse_units_args;

/* Sums of rows. gpu_block: a group of rows; gpu_block_y: columns, and with partials a partition. */
typedef struct cuda_axpy_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t k, n, n_parts; /* columns, neurons, partitions */
    int32_t n_tiles;       /* of CUDA_AXPY_COLUMNS columns */
    cuda_sparse_matrix w;
    const uint8_t *h;           /* f32 [n] */
    const uint8_t *start, *add; /* f32 [k], or NULL */
    uint8_t *y;                 /* f32 [k] */
    uint32_t h_row_bytes, start_row_bytes, add_row_bytes, y_row_bytes;
    /* Without partials, a block takes all partitions in turn. With them, it takes one, and another launch adds up. */
    float *partials; /* [rows][n_parts][k] */
    int32_t *counts; /* [rows][n_parts] neurons with a unit that is not zero */
} cuda_axpy_args;

#endif
