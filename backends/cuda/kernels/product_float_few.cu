/* backends/cuda/kernels/product_float_few.cu - products of float matrices and few rows. A lane has a row of the matrix,
 * so that a warp has 32, and a chain for each of the warp's activation rows. The warps of a block share the weights.
 * A stage has 128 bytes of each row of the matrix. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_float_ring.h"

/* WARP_ROWS: activation rows of a warp. */
template <class T, int WARP_ROWS> struct few {
    enum {
        ROWS = CUDA_FLOAT_THREADS / 32 * WARP_ROWS, /* of a block */
        UNITS = 128 / (4 * T::BYTES),
        PIECE_UNITS = float_piece_units<T>(),
        ROW_BYTES = UNITS * 4 * T::ACTIVATION_BYTES,
    };
    typedef float_ring<T, CUDA_FLOAT_N, ROWS, CUDA_FLOAT_THREADS, UNITS, 16, ROW_BYTES> ring;
    enum { FIT = (48 << 10) / ring::STAGE_BYTES, STAGES = FIT < 8 ? FIT : 8 };

    /* Continues the chains by one unit. w: the unit of the lane's row. x: the unit of the warp's first row. */
    template <bool whole>
    MR_INLINE void add_unit(typename T::weight_unit w, const uint8_t *x, int32_t n, float acc[WARP_ROWS]) {
        float weights[4];
        T::weights(w, weights);
        MR_UNROLL
        for (int r = 0; r < WARP_ROWS; r++) {
            float activations[4];
            T::activations(gpu_read_shared((const typename T::activation_unit *)(x + r * ROW_BYTES)), activations);
            acc[r] = float_chain<T, whole>(weights, activations, n, acc[r]);
        }
    }

    MR_INLINE gpu_int4 read_piece(const uint8_t *stage, int32_t i) {
        uint32_t row = gpu_lane();
        return gpu_read_shared((const gpu_int4 *)(ring::weight_unit(stage, i * PIECE_UNITS) +
                                                  row / CUDA_PANEL * ring::PANEL_PIECES * 16 + row % CUDA_PANEL * 16));
    }

    MR_INLINE void add_stage(const uint8_t *stage, float acc[WARP_ROWS]) {
        const uint8_t *x = stage + gpu_warp() * WARP_ROWS * ROW_BYTES;
        MR_UNROLL
        for (int i = 0; i < ring::PIECES; i++) {
            gpu_int4 piece = read_piece(stage, i);
            MR_UNROLL
            for (int u = 0; u < PIECE_UNITS; u++)
                add_unit<true>(T::unit(piece, u), ring::activation_unit(x, i * PIECE_UNITS + u), 4, acc);
        }
    }

    /* The same for a stage with n columns, fewer than all. */
    MR_INLINE void add_part(const uint8_t *stage, int32_t n, float acc[WARP_ROWS]) {
        const uint8_t *x = stage + gpu_warp() * WARP_ROWS * ROW_BYTES;
        MR_NO_UNROLL
        for (int u = 0; 4 * u < n; u++)
            add_unit<false>(T::unit(read_piece(stage, u / PIECE_UNITS), u % PIECE_UNITS), ring::activation_unit(x, u),
                            n - 4 * u, acc);
    }
};

template <class T, int WARP_ROWS> MR_INLINE void multiply_few(const cuda_product_args &a) {
    typedef few<T, WARP_ROWS> parts;
    enum { STAGES = parts::STAGES, COLUMNS = 4 * parts::UNITS };
    alignas(128) MR_SHARED uint8_t stages[STAGES][parts::ring::STAGE_BYTES];
    product_tile tile;
    if (!product_tile_find(a, parts::ROWS, &tile))
        return;
    typename parts::ring ring = parts::ring::start(a, tile);
    for (int32_t s = 0; s < STAGES - 1; s++)
        parts::ring::load(ring, stages[s], s);
    int32_t row = (int32_t)gpu_warp() * WARP_ROWS, n = tile.block * CUDA_FLOAT_N + (int32_t)gpu_lane();
    float acc[WARP_ROWS] = {};
    MR_NO_UNROLL
    for (int32_t s = 0, left = a.k; left > 0; s++, left -= COLUMNS) {
        gpu_copy_wait<STAGES - 2>();
        gpu_sync();
        parts::ring::load(ring, stages[(s + STAGES - 1) % STAGES], s + STAGES - 1);
        if (row >= tile.n_rows)
            continue;
        if (left >= COLUMNS)
            parts::add_stage(stages[s % STAGES], acc);
        else
            parts::add_part(stages[s % STAGES], left, acc);
    }
    MR_UNROLL
    for (int r = 0; r < WARP_ROWS; r++)
        if (row + r < tile.n_rows && n < a.n)
            product_tile_store(a, tile, row + r, n, acc[r]);
}

#define FEW(type)                                                                                                      \
    MR_KERNEL(cuda_product_##type##_few, cuda_product_args, CUDA_FLOAT_THREADS) {                                      \
        multiply_few<float_##type, 1>(a);                                                                              \
    }                                                                                                                  \
    MR_KERNEL(cuda_product_##type##_some, cuda_product_args, CUDA_FLOAT_THREADS) {                                     \
        multiply_few<float_##type, CUDA_FLOAT_WARP_ROWS>(a);                                                           \
    }
FEW(f32)
FEW(f16)
FEW(bf16)
