/* backends/cuda/kernels/product_tile.h - which matrix and which activation rows a block of a product has. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_PRODUCT_TILE_H
#define MR_BACKENDS_CUDA_KERNELS_PRODUCT_TILE_H

#include "backends/cuda/kernels/cuda_products.h"
#include "backends/cuda/kernels/gpu_rows.h"

/* The matrix, the activations and the results of a block. Row r of the tile is row a_rows[r] of a, and row y_rows[r] of
 * y and add; without lists, row first_row + r of all three. */
struct product_tile {
    const uint8_t *w, *a;
    uint8_t *y;
    const float *bias; /* NULL: none */
    int32_t block;     /* of the blocks that have the rows of the matrix */
    int32_t first_row, n_rows;
    const int32_t *a_rows, *y_rows;
};

/* The tile of an expert: its expert, its number among the tiles of the expert. expert is -1 behind the last tile. */
struct expert_tile {
    int32_t expert, number;
};

/* Finds a tile by its number among the tiles of all experts. The lanes of a warp look at 32 experts at a time. */
MR_INLINE expert_tile expert_tile_find(const int32_t *first, int32_t n_experts, int32_t tile_rows, int32_t number) {
    int32_t lane = (int32_t)gpu_lane();
    for (int32_t base = 0; base < n_experts; base += 32) {
        int32_t e = base + lane, n = e < n_experts ? first[e + 1] - first[e] : 0;
        int32_t n_tiles = (n + tile_rows - 1) / tile_rows, end = n_tiles; /* becomes the sum over lanes 0 .. lane */
        for (int32_t d = 1; d < 32; d *= 2) {
            int32_t other = gpu_shuffle(end, lane < d ? lane : lane - d);
            end += lane < d ? 0 : other;
        }
        int32_t all = gpu_shuffle(end, 31), n_before = end <= number;
        if (number < all) {
            for (int32_t d = 16; d > 0; d /= 2)
                n_before += gpu_shuffle_xor(n_before, d);
            return {base + n_before, number - gpu_shuffle(end - n_tiles, n_before)};
        }
        number -= all;
    }
    return {-1, 0};
}

/* The tile of this block, for tiles of tile_rows rows. False: there is no such tile. All threads get the same. */
MR_INLINE bool product_tile_find(const cuda_product_args &a, int32_t tile_rows, product_tile *out) {
    int32_t number = (int32_t)gpu_block_y(), matrix = (int32_t)(gpu_block() / a.blocks_of_matrix);
    product_tile t = {};
    t.a = a.a + (size_t)matrix * a.a_head_bytes;
    t.y = a.y + (size_t)matrix * a.y_head_bytes;
    t.block = (int32_t)(gpu_block() % a.blocks_of_matrix);
    if (a.first) {
        expert_tile e = expert_tile_find(a.first, a.n_experts, tile_rows, number);
        if (e.expert < 0)
            return false;
        matrix = e.expert;
        number = e.number;
        t.a_rows = a.a_rows + a.first[matrix];
        t.y_rows = a.y_rows + a.first[matrix];
        t.n_rows = a.first[matrix + 1] - a.first[matrix];
    } else {
        t.n_rows = gpu_real_rows(a.step, a.rows);
    }
    t.w = a.w + (size_t)matrix * a.matrix_bytes;
    if (a.bias)
        t.bias = (const float *)(a.bias + (size_t)matrix * a.bias_matrix_bytes);
    t.first_row = number * tile_rows;
    t.n_rows = t.n_rows - t.first_row < tile_rows ? t.n_rows - t.first_row : tile_rows;
    *out = t;
    return t.n_rows > 0;
}

/* The activations of row r of the tile. */
MR_INLINE const uint8_t *product_tile_row(const cuda_product_args &a, const product_tile &t, int32_t r) {
    int32_t row = t.first_row + r;
    return t.a + (size_t)(t.a_rows ? t.a_rows[row] : row) * a.a_row_bytes;
}

/* Stores the product of matrix row n and row r of the tile, as rule M ends. */
MR_INLINE void product_tile_store(const cuda_product_args &a, const product_tile &t, int32_t r, int32_t n, float acc) {
    int32_t row = t.first_row + r;
    row = t.y_rows ? t.y_rows[row] : row;
    if (t.bias)
        acc += t.bias[n];
    if (a.add)
        acc += gpu_row<const float>(a.add, row, a.add_row_bytes)[n];
    gpu_row<float>(t.y, row, a.y_row_bytes)[n] = acc;
}

#endif
