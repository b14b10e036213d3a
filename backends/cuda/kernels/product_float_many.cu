/* backends/cuda/kernels/product_float_many.cu - products of float matrices and many rows. A block of 4 warps has 128
 * rows of the matrix and 64 of the activations, a warp 64 and 32, a lane 8 and 8: 64 chains. A stage has 16 columns.
 * Lanes next to each other read pieces of 16 bytes next to each other. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_float_ring.h"

enum {
    STAGES = 3,
    UNITS = 4,
    LANE_N = 8,
    LANE_ROWS = 8,
    WARP_N = 64,
    WARP_ROWS = 32,
    PIECE_STRIDE = (CUDA_FLOAT_MANY_ROWS + 2) * 16, /* so that the copies of a row's pieces go to different banks */
};

/* The lane's first row in the block: of the matrix, and of the activations. Its others lie 8 and 4 rows apart. */
MR_INLINE int32_t first_n() {
    return (int32_t)(gpu_warp() % 2 * WARP_N + gpu_lane() % 8);
}
MR_INLINE int32_t first_row() {
    return (int32_t)(gpu_warp() / 2 * WARP_ROWS + gpu_lane() / 8);
}

template <class T> struct many {
    typedef float_ring<T, CUDA_FLOAT_MANY_N, CUDA_FLOAT_MANY_ROWS, CUDA_FLOAT_MANY_THREADS, UNITS, PIECE_STRIDE, 16>
        ring;

    /* Continues the chains by unit u of a stage. n: as in float_chain. */
    template <bool whole>
    MR_INLINE void add_unit(const uint8_t *stage, int32_t u, int32_t n, float acc[LANE_N][LANE_ROWS]) {
        const uint8_t *x = ring::activation_unit(stage, u) + first_row() * 16;
        const uint8_t *w = ring::weight_unit(stage, u) + first_n() / 16 * ring::PANEL_PIECES * 16 + first_n() % 16 * 16;
        float activations[LANE_ROWS][4];
        MR_UNROLL
        for (int r = 0; r < LANE_ROWS; r++)
            T::activations(gpu_read_shared((const typename T::activation_unit *)(x + r * 4 * 16)), activations[r]);
        MR_UNROLL
        for (int i = 0; i < LANE_N; i++) {
            float weights[4];
            const uint8_t *at = w + i / 2 * ring::PANEL_PIECES * 16 + i % 2 * 8 * 16;
            T::weights(gpu_read_shared((const typename T::weight_unit *)at), weights);
            MR_UNROLL
            for (int r = 0; r < LANE_ROWS; r++)
                acc[i][r] = float_chain<T, whole>(weights, activations[r], n, acc[i][r]);
        }
    }
};

template <class T> MR_INLINE void multiply_many(const cuda_product_args &a) {
    typedef many<T> parts;
    alignas(128) MR_SHARED uint8_t stages[STAGES][parts::ring::STAGE_BYTES];
    product_tile tile;
    if (!product_tile_find(a, CUDA_FLOAT_MANY_ROWS, &tile))
        return;
    typename parts::ring ring = parts::ring::start(a, tile);
    for (int32_t s = 0; s < STAGES - 1; s++)
        parts::ring::load(ring, stages[s], s);
    float acc[LANE_N][LANE_ROWS] = {};
    MR_NO_UNROLL
    for (int32_t s = 0, left = a.k; left > 0; s++, left -= 4 * UNITS) {
        gpu_copy_wait<STAGES - 2>();
        gpu_sync();
        parts::ring::load(ring, stages[(s + STAGES - 1) % STAGES], s + STAGES - 1);
        int32_t n_whole = left / 4 < UNITS ? left / 4 : UNITS;
        MR_NO_UNROLL
        for (int32_t u = 0; u < n_whole; u++)
            parts::template add_unit<true>(stages[s % STAGES], u, 4, acc);
        if (n_whole < UNITS && left % 4)
            parts::template add_unit<false>(stages[s % STAGES], n_whole, left % 4, acc);
    }
    MR_UNROLL
    for (int r = 0; r < LANE_ROWS; r++)
        MR_UNROLL
    for (int i = 0; i < LANE_N; i++) {
        int32_t row = first_row() + 4 * r, n = tile.block * CUDA_FLOAT_MANY_N + first_n() + 8 * i;
        if (row < tile.n_rows && n < a.n)
            product_tile_store(a, tile, row, n, acc[i][r]);
    }
}

#define MANY(type)                                                                                                     \
    MR_KERNEL(cuda_product_##type##_many, cuda_product_args, CUDA_FLOAT_MANY_THREADS) {                                \
        multiply_many<float_##type>(a);                                                                                \
    }
MANY(f32)
MANY(f16)
MANY(bf16)
