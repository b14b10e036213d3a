/* backends/cuda/cuda_products.h - what a matrix product multiplies, by which its kernel is chosen. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_PRODUCTS_H
#define MR_BACKENDS_CUDA_CUDA_PRODUCTS_H

#include <stdint.h>

#include "engine/tensor/type.h"

typedef struct cuda_product_size {
    mr_type type;
    int32_t n_rows;       /* of the row bucket; with experts, all slots */
    int32_t n_heads;      /* at least 1 */
    int32_t n_experts;    /* 0: none */
    int32_t n_processors; /* of the device */
} cuda_product_size;

/* Tiles of tile_rows activation rows; with experts, of all of them: each expert's last tile may be partial. */
static inline int32_t cuda_product_tiles(const cuda_product_size *size, int32_t tile_rows) {
    if (!size->n_experts)
        return (size->n_rows + tile_rows - 1) / tile_rows;
    return size->n_rows / tile_rows + (size->n_experts < size->n_rows ? size->n_experts : size->n_rows);
}

#endif
