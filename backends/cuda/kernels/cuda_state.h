/* backends/cuda/kernels/cuda_state.h - arguments of the kernels that change block tables and copy KV blocks. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_STATE_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_STATE_H

#include "backends/cuda/kernels/cuda_step.h"

enum {
    CUDA_TABLE_THREADS = 32, /* one warp, since a later entry stands above an earlier one */
    CUDA_COPY_THREADS = 256,
};

/* table[slot[i]][index[i]] = block[i], in the order of i. */
typedef struct cuda_table_write_args {
    const cuda_step *step;
    cuda_rows rows; /* entries */
    const int32_t *slot, *index, *block;
    uint8_t *table; /* i32 */
    uint32_t table_row_bytes;
} cuda_table_write_args;

/* Copies block from[i] to block to[i] in each part of the store, in the order of i. Part p has n_blocks blocks of
 * parts[p] bytes. A block row (gpu_block_y) has a part. */
typedef struct cuda_kv_copy_args {
    const cuda_step *step;
    cuda_rows rows; /* copies */
    int32_t n_blocks;
    const int32_t *from, *to, *parts;
    uint8_t *store;
} cuda_kv_copy_args;

#endif
