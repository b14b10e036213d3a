/* backends/cuda/kernels/gpu_sparse.h - lists of neurons, for the kernels of sparse feed-forward parts. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_SPARSE_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_SPARSE_H

#include "backends/cuda/kernels/cuda_sparse.h"
#include "backends/cuda/kernels/gpu_rows.h"
#include "engine/tensor/relu.h"

/* The threads of a block that have something to list, in their order. */
struct gpu_places {
    int32_t own, n; /* own: how many threads before this one have something */
};

/* counts: shared, one for each warp. All threads of the block call this together, and gpu_sync before the next call. */
MR_INLINE gpu_places gpu_find_place(bool has, int32_t counts[CUDA_SPARSE_THREADS / 32]) {
    uint32_t bits = gpu_ballot(has);
    gpu_places p = {__builtin_popcount(bits & ((1u << gpu_lane()) - 1)), 0};
    if (gpu_lane() == 0)
        counts[gpu_warp()] = __builtin_popcount(bits);
    gpu_sync();
    for (uint32_t w = 0; w < CUDA_SPARSE_THREADS / 32; w++) {
        p.own += w < gpu_warp() ? counts[w] : 0;
        p.n += counts[w];
    }
    return p;
}

/* --- Units -------------------------------------------------------------------------------------------------------- */

/* What a block computes: neurons list[0 .. n) of a partition, at most NEURONS, for rows [row, row + n_rows). */
struct gpu_units {
    const int32_t *list;
    int32_t part, n, row, n_rows;
};

/* Returns false if there is nothing to compute; zeros are written all the same. */
template <int NEURONS, int ROWS> MR_INLINE bool gpu_units_find(const cuda_sparse_units_args &a, gpu_units *u) {
    enum { GROUPS = MR_PARTITION / NEURONS };
    MR_SHARED uint32_t any[MR_PARTITION_WORDS];
    int32_t group = (int32_t)(gpu_block() % GROUPS), part = (int32_t)(gpu_block() / GROUPS);
    int32_t n_active = gpu_read(a.active.counts + part), left = n_active - group * NEURONS;
    *u = {a.active.neurons + part * MR_PARTITION + group * NEURONS, part, left < NEURONS ? left : NEURONS,
          (int32_t)gpu_block_y() * ROWS, gpu_real_rows(a.step, a.rows) - (int32_t)gpu_block_y() * ROWS};
    u->n_rows = u->n_rows < ROWS ? u->n_rows : ROWS;
    if (u->n_rows <= 0)
        return false;
    if (group == 0) {
        int32_t thread = (int32_t)gpu_thread(), neuron = part * MR_PARTITION + thread;
        if (thread < MR_PARTITION_WORDS)
            any[thread] = 0;
        gpu_sync();
        if (thread < n_active) {
            int32_t active = gpu_read(u->list + thread) % MR_PARTITION;
            (void)gpu_atomic_add((int *)&any[active / 32], (int)(1u << active % 32)); /* no other has this bit */
        }
        gpu_sync();
        if (neuron < a.n && !(any[thread / 32] >> thread % 32 & 1u))
            for (int32_t r = 0; r < u->n_rows; r++)
                gpu_row<float>(a.y, u->row + r, a.y_row_bytes)[neuron] = 0.0f;
    }
    return u->n > 0;
}

/* Writes the unit of a neuron in row r of the block. */
MR_INLINE void gpu_units_put(const cuda_sparse_units_args &a, const gpu_units &u, int32_t neuron, int32_t r, float gate,
                             float up) {
    int32_t row = u.row + r;
    const uint32_t *set = a.active.sets + ((size_t)row * (size_t)a.n_parts + (size_t)u.part) * MR_PARTITION_WORDS;
    bool is_active = gpu_read(set + neuron % MR_PARTITION / 32) >> neuron % 32 & 1u;
    gpu_row<float>(a.y, row, a.y_row_bytes)[neuron] = is_active ? mr_relu_unit_one(gate, up, a.unit) : 0.0f;
}

#endif
