/* backends/cuda/kernels/kv_copy.cu - copies KV blocks. A thread has the same bytes of every block, and copies them in
 * the order of the list, so a block may be copied on. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_state.h"
#include "backends/cuda/kernels/gpu_rows.h"

/* Copies this thread's pieces of blocks of block_bytes. */
template <class Piece> MR_INLINE void copy_pieces(const cuda_kv_copy_args &a, uint8_t *part, size_t block_bytes) {
    int32_t n = gpu_real_rows(a.step, a.rows);
    size_t first = ((size_t)gpu_block() * CUDA_COPY_THREADS + gpu_thread()) * sizeof(Piece);
    for (size_t at = first; at < block_bytes; at += (size_t)gpu_blocks() * CUDA_COPY_THREADS * sizeof(Piece))
        for (int32_t i = 0; i < n; i++)
            *(Piece *)(part + (size_t)a.to[i] * block_bytes + at) =
                *(const Piece *)(part + (size_t)a.from[i] * block_bytes + at);
}

MR_KERNEL(cuda_kv_copy, cuda_kv_copy_args, CUDA_COPY_THREADS) {
    uint8_t *part = a.store;
    for (uint32_t p = 0; p < gpu_block_y(); p++)
        part += (size_t)a.parts[p] * (size_t)a.n_blocks;
    size_t block_bytes = (size_t)a.parts[gpu_block_y()];
    if (((size_t)part | block_bytes) % sizeof(gpu_int4) == 0)
        copy_pieces<gpu_int4>(a, part, block_bytes);
    else
        copy_pieces<uint8_t>(a, part, block_bytes);
}
