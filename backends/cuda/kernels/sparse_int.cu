/* backends/cuda/kernels/sparse_int.cu - units of neurons whose matrices are quantised (rules M and S). A warp has the
 * gate or the up of a neuron, and walks its row in chunks of 32 tiles: a lane has a tile, and puts its steps of the
 * chains of all rows into shared memory. Then lane r walks the chain of row r. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_sparse.h"
#include "backends/cuda/kernels/gpu_sparse_types.h"

enum { ROWS = CUDA_SPARSE_INT_ROWS, NEURONS = CUDA_SPARSE_INT_NEURONS, WARPS = CUDA_SPARSE_THREADS / 32, CHUNK = 32 };
static_assert(WARPS == 2 * NEURONS && ROWS <= 32, "a warp for each gate and up");

/* acc = fma(x, y, acc) */
struct alignas(8) chain_step {
    float x, y;
};
/* A step more than rows, so that the lanes of a read have different banks. MIN: two steps for each tile. */
struct chunk_steps {
    chain_step at[2 * CHUNK][ROWS + 1];
    float d[CHUNK / 8]; /* BLOCK: of a block */
};

template <class T>
MR_INLINE void put_steps(chunk_steps &out, const gpu_tile &w, const uint8_t *a, int32_t k, int32_t tile, int r) {
    int lane = (int)gpu_lane(), halves[2] = {0, 0}, q[4];
    MR_UNROLL
    for (int h = 0; h < 2; h++) {
        product_words(gpu_read((const gpu_int4 *)(a + (size_t)tile * 32 + 16 * h)), q);
        MR_UNROLL
        for (int j = 0; j < 4; j++)
            halves[h] = gpu_dot4(w.q[4 * h + j], q[j], halves[h]);
    }
    float d_a = gpu_read((const float *)(a + k) + tile);
    int sum_a = gpu_read((const int32_t *)(a + k + k / 8) + tile);
    float isum = (float)T::sum(w, halves, sum_a);
    if (T::RULE == PRODUCT_MIN) {
        out.at[2 * lane][r] = {isum, w.d * d_a};
        out.at[2 * lane + 1][r] = {w.min, d_a * (float)sum_a};
    } else {
        out.at[lane][r] = {isum, T::RULE == PRODUCT_BLOCK ? d_a : w.d * d_a};
    }
}

/* Continues the chain of a row by the steps of n tiles. */
template <class T> MR_INLINE float walk_steps(const chunk_steps &in, int r, int32_t n, float acc) {
    float sum = 0.0f;
    MR_NO_UNROLL
    for (int32_t i = 0; i < n; i++) {
        if (T::RULE == PRODUCT_BLOCK) {
            sum = fmaf(in.at[i][r].x, in.at[i][r].y, sum);
            if (i % 8 == 7) {
                acc = fmaf(sum, in.d[i / 8], acc);
                sum = 0.0f;
            }
        } else if (T::RULE == PRODUCT_MIN) {
            acc = fmaf(in.at[2 * i][r].x, in.at[2 * i][r].y, acc);
            acc = fmaf(in.at[2 * i + 1][r].x, in.at[2 * i + 1][r].y, acc);
        } else {
            acc = fmaf(in.at[i][r].x, in.at[i][r].y, acc);
        }
    }
    return acc;
}

/* Lane r returns the product of the neuron's row by row r of the activations. */
template <class T>
MR_INLINE float multiply_row(const cuda_sparse_units_args &a, const gpu_units &u, const uint8_t *w,
                             chunk_steps &steps) {
    int32_t n_tiles = a.k / 32, lane = (int32_t)gpu_lane();
    typename T::raw raw = {};
    float acc = 0.0f;
    if (lane < n_tiles)
        T::read(w, lane, raw);
    MR_NO_UNROLL
    for (int32_t first = 0; first < n_tiles; first += CHUNK) {
        int32_t tile = first + lane, n = n_tiles - first < CHUNK ? n_tiles - first : CHUNK;
        gpu_tile values = {};
        if (tile < n_tiles)
            values = T::unpack(raw, tile);
        if (tile + CHUNK < n_tiles)
            T::read(w, tile + CHUNK, raw);
        if (T::RULE == PRODUCT_BLOCK && tile < n_tiles && lane % 8 == 0)
            steps.d[lane / 8] = values.d;
        MR_NO_UNROLL
        for (int r = 0; r < u.n_rows && tile < n_tiles; r++)
            put_steps<T>(steps, values, gpu_row<const uint8_t>(a.a, u.row + r, a.a_row_bytes), a.k, tile, r);
        gpu_sync_warp();
        if (lane < u.n_rows)
            acc = walk_steps<T>(steps, lane, n, acc);
        gpu_sync_warp();
    }
    return acc;
}

MR_INLINE float multiply(const cuda_sparse_units_args &a, const gpu_units &u, const uint8_t *w, mr_type type,
                         chunk_steps &steps) {
    switch (type) {
    case MR_TYPE_Q8_0:
        return multiply_row<sparse_q8_0>(a, u, w, steps);
    case MR_TYPE_Q4_0:
        return multiply_row<sparse_q4_0>(a, u, w, steps);
    case MR_TYPE_IQ4_NL:
        return multiply_row<sparse_iq4_nl>(a, u, w, steps);
    case MR_TYPE_MXFP4:
        return multiply_row<sparse_mxfp4>(a, u, w, steps);
    case MR_TYPE_IQ4_XS:
        return multiply_row<sparse_iq4_xs>(a, u, w, steps);
    case MR_TYPE_Q4_K:
        return multiply_row<sparse_q4_k>(a, u, w, steps);
    case MR_TYPE_Q5_K:
        return multiply_row<sparse_q5_k>(a, u, w, steps);
    default:
        return multiply_row<sparse_q6_k>(a, u, w, steps);
    }
}

MR_KERNEL(cuda_sparse_int, cuda_sparse_units_args, CUDA_SPARSE_THREADS) {
    MR_SHARED chunk_steps steps[WARPS];
    MR_SHARED float products[2][NEURONS][ROWS];
    gpu_units u;
    if (!gpu_units_find<NEURONS, ROWS>(a, &u))
        return;
    int32_t matrix = (int32_t)gpu_warp() / NEURONS, slot = (int32_t)gpu_warp() % NEURONS, lane = (int32_t)gpu_lane();
    const cuda_sparse_matrix &m = a.matrices[matrix];
    if (m.data && slot < u.n) {
        const uint8_t *row = m.data + (size_t)gpu_read(u.list + slot) * m.row_bytes;
        float y = multiply(a, u, row, m.type, steps[gpu_warp()]);
        if (lane < u.n_rows)
            products[matrix][slot][lane] = y;
    }
    gpu_sync();
    if (matrix == 0 && slot < u.n && lane < u.n_rows)
        gpu_units_put(a, u, gpu_read(u.list + slot), lane, products[0][slot][lane],
                      m.data && a.matrices[1].data ? products[1][slot][lane] : 0.0f);
}
