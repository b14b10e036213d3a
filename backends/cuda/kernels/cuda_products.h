/* backends/cuda/kernels/cuda_products.h - arguments of the matrix products (rule M of engine/NUMERICS.md), and the
 * layout of float matrices in the device's memory.
 *
 * A matrix lies in panels of 16 rows, one behind the other; in the last panel, the last row stands in place of rows
 * past the end. F32, F16, BF16: for each 16 bytes of a row (4 or 8 columns) a piece of 256 bytes, the bytes of the 16
 * rows one behind the other. Zeros follow the last column. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_PRODUCTS_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_PRODUCTS_H

#include "backends/cuda/kernels/cuda_step.h"

enum {
    CUDA_PANEL = 16,        /* rows of a panel: MR_PANEL */
    CUDA_PIECE_BYTES = 256, /* of a panel of floats: 16 bytes of each row */
    CUDA_REPACK_THREADS = 256,
    /* Products of floats. A block has N rows of the matrix; of the activations it has ROWS, or for few rows one for
     * each warp, for some rows WARP_ROWS for each warp. */
    CUDA_FLOAT_THREADS = 256,
    CUDA_FLOAT_N = 32,
    CUDA_FLOAT_WARP_ROWS = 4,
    CUDA_FLOAT_MANY_THREADS = 128,
    CUDA_FLOAT_MANY_N = 128,
    CUDA_FLOAT_MANY_ROWS = 64,
    /* Integer products of many rows: a block has so many panels of the matrix, and so many activation rows. The chains
     * of blocks of Q6_K take registers, so that it has fewer. */
    CUDA_LARGE_THREADS = 256,
    CUDA_LARGE_PANELS = 8,
    CUDA_LARGE_SHORT = 64,
    CUDA_LARGE_LONG = 128,
    CUDA_LARGE_LONG_BLOCK = 96,
};

/* y[r][n] = w a (+ bias[n]) (+ add[r][n]). A block row (gpu_block_y) has a tile of activation rows.
 * Heads: block / blocks_of_matrix is the head h. Its matrix lies matrix_bytes * h behind w, its activations
 * a_head_bytes * h behind a, its results y_head_bytes * h behind y.
 * Experts: expert e has slots first[e] .. first[e + 1] - 1; slot i multiplies row a_rows[i] of a by the matrix of its
 * expert, and the result is row y_rows[i] of y. Tiles of all experts follow one another. */
typedef struct cuda_product_args {
    const cuda_step *step;
    cuda_rows rows; /* of a; not for experts */
    int32_t k, n;   /* columns and rows of a matrix */
    const uint8_t *w;
    uint64_t matrix_bytes;
    const uint8_t *a;          /* rows of mr_type_activation's type, aligned to 16 bytes */
    uint8_t *y;                /* f32 */
    const uint8_t *bias, *add; /* f32, or NULL; add may be y */
    uint32_t a_row_bytes, y_row_bytes, add_row_bytes;
    uint32_t bias_matrix_bytes;             /* from the bias of one expert to the next */
    uint32_t blocks_of_matrix;              /* blocks of a block row that have the rows of one matrix */
    uint32_t a_head_bytes, y_head_bytes;    /* 0 without heads */
    const int32_t *first, *a_rows, *y_rows; /* NULL without experts */
    int32_t n_experts;
} cuda_product_args;

/* Repacks a float matrix: a thread moves 16 bytes. gpu_block is the panel, gpu_block_y a part of it. */
typedef struct cuda_repack_float_args {
    const uint8_t *src; /* rows as they lie in the file, aligned to 2 bytes */
    uint8_t *dst;
    uint64_t row_bytes; /* even */
    int32_t n_rows;
} cuda_repack_float_args;

#endif
