/* backends/cuda/kernels/cuda_kv.h - arguments of the kernels that write keys and values (rule K). The store has the
 * layout of backends/cpu/kernels.h, so that KV blocks move between devices as bytes. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_KV_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_KV_H

#include "backends/cuda/kernels/cuda_step.h"

enum {
    CUDA_KV_BLOCK = 16, /* positions of a KV block */
    CUDA_KV_WRITE_THREADS = 128,
};

/* Rotates elements of a key: rule R. */
typedef struct cuda_turn {
    const uint8_t *table; /* [n_rot] f32 for each row: cosines, then sines; NULL: keys are not rotated */
    uint32_t row_bytes;
    int32_t first, n_rot; /* elements [first, first + n_rot) of a head rotate */
    int32_t interleaved;  /* element 2i with 2i + 1; else i with i + n_rot / 2 */
} cuda_turn;

/* cuda_kv_write_TYPE: a block writes one KV head (gpu_block_y) of one row (gpu_block). */
typedef struct cuda_kv_write_args {
    const cuda_step *step;
    cuda_rows rows;
    const uint8_t *k, *v; /* [n_kv_heads][k_dim] and [n_kv_heads][v_dim] f32 for each row */
    uint32_t k_row_bytes, v_row_bytes;
    const int32_t *slots; /* [rows]: block * 16 + position % 16 */
    uint8_t *k_store, *v_store;
    uint64_t k_block_bytes, v_block_bytes; /* from one block to the next */
    uint64_t k_head_bytes, v_head_bytes;   /* of one block and head */
    int32_t k_dim, v_dim;
    cuda_turn turn;
} cuda_kv_write_args;

#endif
