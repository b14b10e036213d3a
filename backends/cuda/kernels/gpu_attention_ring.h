/* backends/cuda/kernels/gpu_attention_ring.h - brings the keys and values of a unit into shared memory, once for all of
 * its queries: chunk by chunk, through a ring of cp.async copies. Each tile of 64 positions has the same chunks. The
 * struct Chunks of a type of store says how many there are, their bytes, and how one is copied. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_ATTENTION_RING_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_ATTENTION_RING_H

#include "backends/cuda/kernels/gpu_attention.h"

enum { GPU_STAGES = 4 };

template <class Chunks> struct gpu_ring { alignas(16) uint8_t at[GPU_STAGES][Chunks::BYTES]; };

/* What is copied next: chunk `chunk` of the tile at position, while position < end. */
struct gpu_ahead {
    int32_t position, end, chunk, n_loaded;
};

/* From the first tile of a unit to the end of its positions. */
MR_INLINE gpu_ahead gpu_ahead_of(const gpu_unit &u) {
    int32_t start = u.first / GPU_TILE * GPU_TILE, end = u.last;
    if (u.partition >= 0) {
        start = gpu_max(start, u.partition * CUDA_PARTITION);
        end = gpu_min(end, u.partition * CUDA_PARTITION + CUDA_PARTITION);
    }
    return {start, end, 0, 0};
}

/* Whether a row of the unit sees a position of the KV block at position. The blocks of others may not exist. */
MR_INLINE bool gpu_has_block(const gpu_unit &u, int32_t position) {
    return position < u.last && position + CUDA_KV_BLOCK > u.first;
}

/* The keys and the values of the KV block that has this position. */
MR_INLINE const uint8_t *gpu_keys(const cuda_attention_args &a, const gpu_unit &u, int32_t position) {
    return a.k_store + (size_t)gpu_read(u.blocks + position / CUDA_KV_BLOCK) * a.k_block_bytes +
           (size_t)u.kv_head * a.k_head_bytes;
}
MR_INLINE const uint8_t *gpu_values(const cuda_attention_args &a, const gpu_unit &u, int32_t position) {
    return a.v_store + (size_t)gpu_read(u.blocks + position / CUDA_KV_BLOCK) * a.v_block_bytes +
           (size_t)u.kv_head * a.v_head_bytes;
}

/* Starts to copy the next chunk, if there is one. */
template <class Chunks>
MR_INLINE void gpu_ring_ahead(const cuda_attention_args &a, const gpu_unit &u, gpu_ring<Chunks> &ring,
                              gpu_ahead &ahead) {
    uint8_t *to = ring.at[ahead.n_loaded++ % GPU_STAGES];
    if (ahead.position < ahead.end) {
        Chunks::copy(a, u, ahead.position, ahead.chunk, to);
        if (++ahead.chunk == Chunks::count(a)) {
            ahead.chunk = 0;
            ahead.position += GPU_TILE;
        }
    }
    gpu_copy_commit();
}

/* Waits for the next chunk. It stays until the next call. */
template <class Chunks>
MR_INLINE const uint8_t *gpu_ring_next(const cuda_attention_args &a, const gpu_unit &u, gpu_ring<Chunks> &ring,
                                       gpu_ahead &ahead) {
    gpu_copy_wait<GPU_STAGES - 2>();
    gpu_sync();
    gpu_ring_ahead(a, u, ring, ahead);
    return ring.at[ahead.n_loaded % GPU_STAGES];
}

#endif
