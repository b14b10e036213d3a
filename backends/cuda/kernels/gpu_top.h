/* backends/cuda/kernels/gpu_top.h - the logits of a block, and sums over its threads, for the kernels of TOP. A warp
 * has consecutive logits, and its lanes have neighbours: logit j of a lane stands 32 behind logit j - 1. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_TOP_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_TOP_H

#include "backends/cuda/kernels/cuda_top.h"
#include "backends/cuda/kernels/gpu_rows.h"
#include "engine/base/top.h"

enum { GPU_TOP_WARPS = CUDA_TOP_THREADS / 32 };
enum : uint32_t {
    GPU_TOP_NONE = 0,          /* the key where there is no logit. No logit has it: that of -inf is 0x007fffff */
    GPU_TOP_NAN = 0xffffffffu, /* the key of a NaN, above all others */
};

MR_INLINE bool gpu_top_has_row(const cuda_top_args &a) {
    return (int32_t)gpu_block() < gpu_real_rows(a.step, a.rows);
}
MR_INLINE cuda_top_state *gpu_top_state(const cuda_top_args &a) {
    return a.states + gpu_block();
}
/* The pieces of the row. */
MR_INLINE cuda_top_piece *gpu_top_pieces(const cuda_top_args &a) {
    return a.pieces + (size_t)gpu_block() * (size_t)a.n_pieces;
}

/* The id of logit j of the thread. */
MR_INLINE int32_t gpu_top_id(int j) {
    return (int32_t)(gpu_block_y() * CUDA_TOP_PIECE + gpu_warp() * (32 * CUDA_TOP_EACH) + 32 * (uint32_t)j +
                     gpu_lane());
}

/* Reads the bits of the thread's logits, all reads under way together. */
MR_INLINE void gpu_top_read(const cuda_top_args &a, uint32_t (&bits)[CUDA_TOP_EACH]) {
    const uint32_t *row = gpu_row<const uint32_t>(a.logits, (int32_t)gpu_block(), a.logits_row_bytes);
    MR_UNROLL
    for (int j = 0; j < CUDA_TOP_EACH; j++)
        bits[j] = gpu_top_id(j) < a.n ? gpu_read(row + gpu_top_id(j)) : 0;
}

MR_INLINE uint32_t gpu_top_key(const cuda_top_args &a, int j, uint32_t bits) {
    float logit = mr_bits_f32(bits);
    if (gpu_top_id(j) >= a.n)
        return GPU_TOP_NONE;
    return (bits & 0x7fffffffu) > 0x7f800000u ? GPU_TOP_NAN : mr_logit_key(logit);
}

MR_INLINE void gpu_top_read_keys(const cuda_top_args &a, uint32_t (&keys)[CUDA_TOP_EACH]) {
    gpu_top_read(a, keys);
    MR_UNROLL
    for (int j = 0; j < CUDA_TOP_EACH; j++)
        keys[j] = gpu_top_key(a, j, keys[j]);
}

/* The sum of v over the threads of the block, the same in all threads. shared: a number for each warp. */
template <class T> MR_INLINE T gpu_top_sum(T v, T *shared) {
    for (int mask = 16; mask > 0; mask /= 2)
        v += gpu_shuffle_xor(v, mask);
    gpu_sync(); /* earlier sums have been read */
    if (gpu_lane() == 0)
        shared[gpu_warp()] = v;
    gpu_sync();
    T sum = 0;
    for (int w = 0; w < GPU_TOP_WARPS; w++)
        sum += shared[w];
    return sum;
}

/* The highest key of the row; GPU_TOP_NAN if a logit is NaN. */
MR_INLINE uint32_t gpu_top_max(const cuda_top_args &a, uint32_t *shared) {
    uint32_t max = GPU_TOP_NONE;
    for (int32_t i = (int32_t)gpu_thread(); i < a.n_pieces; i += CUDA_TOP_THREADS) {
        uint32_t key = gpu_read(&gpu_top_pieces(a)[i].max_key);
        max = key > max ? key : max;
    }
    max = gpu_warp_max(max);
    gpu_sync();
    if (gpu_lane() == 0)
        shared[gpu_warp()] = max;
    gpu_sync();
    for (int w = 0; w < GPU_TOP_WARPS; w++)
        max = shared[w] > max ? shared[w] : max;
    return max;
}

/* The lowest bit of a key that a level reads. */
MR_INLINE int gpu_top_shift(int level) {
    return level == 0 ? 21 : level == 1 ? 10 : 0;
}

/* Goes from the cut before a level to the cut behind it, by what the level has counted. The threads of the block go
 * through the bins together, from the highest one on. */
MR_INLINE cuda_top_cut gpu_top_next_cut(cuda_top_cut cut, const int32_t *bins, int level) {
    enum { EACH = 8 }; /* bins of a thread */
    static_assert(EACH * CUDA_TOP_THREADS == CUDA_TOP_BINS, "the block has all bins");
    static_assert(sizeof(cuda_top_state) % sizeof(gpu_int4) == 0, "bins of all rows are aligned");
    MR_SHARED int32_t totals[GPU_TOP_WARPS];
    MR_SHARED cuda_top_cut next;
    int32_t first = CUDA_TOP_BINS - 1 - (int32_t)gpu_thread() * EACH, n = 0;
    const gpu_int4 *from = (const gpu_int4 *)(bins + first + 1 - EACH);
    gpu_int4 low = gpu_read(from), high = gpu_read(from + 1);
    const int32_t own[EACH] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
    MR_UNROLL
    for (int i = 0; i < EACH; i++)
        n += own[i];
    int32_t end = n; /* keys up to the end of the thread's bins */
    for (int d = 1; d < 32; d *= 2) {
        int32_t before = gpu_shuffle(end, gpu_lane() >= (uint32_t)d ? (int)gpu_lane() - d : 0);
        end += gpu_lane() >= (uint32_t)d ? before : 0;
    }
    if (gpu_lane() == 31)
        totals[gpu_warp()] = end;
    gpu_sync();
    for (uint32_t w = 0; w < gpu_warp(); w++)
        end += totals[w];
    int32_t left = cut.n_left - (end - n); /* keys that are taken from here on */
    if (left > 0 && left <= n) {
        int32_t bin = first;
        MR_UNROLL
        for (int i = 0; i < EACH; i++)
            if (bin == first - i && own[i] < left) {
                left -= own[i];
                bin--;
            }
        next = {cut.key | (uint32_t)bin << gpu_top_shift(level), left};
    }
    gpu_sync();
    return next;
}

#endif
