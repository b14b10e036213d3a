/* backends/cuda/kernels/product_float_ring.h - the shared memory of float products: a ring of stages, in which weights
 * and activations arrive while earlier stages are multiplied. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_PRODUCT_FLOAT_RING_H
#define MR_BACKENDS_CUDA_KERNELS_PRODUCT_FLOAT_RING_H

#include "backends/cuda/kernels/product_float.h"

/* A stage has UNITS units of N rows of the matrix, as [panel][piece][16 rows], then those of ROWS activation rows:
 * piece p of row r lies at PIECE_STRIDE * p + ROW_STRIDE * r. Strides are bytes. */
template <class T, int N, int ROWS, int THREADS, int UNITS, int PIECE_STRIDE, int ROW_STRIDE> struct float_ring {
    enum {
        PIECES = float_pieces<T>(UNITS),
        ACTIVATION_PIECES = float_activation_pieces<T>(UNITS),
        WEIGHT_BYTES = N * PIECES * 16,
        STAGE_BYTES = WEIGHT_BYTES + (ACTIVATION_PIECES - 1) * PIECE_STRIDE + (ROWS - 1) * ROW_STRIDE + 16,
        PANEL_PIECES = PIECES * CUDA_PANEL,
        COPIES = N * PIECES / THREADS, /* of a thread for each stage */
        ACTIVATION_COPIES = (ROWS * ACTIVATION_PIECES + THREADS - 1) / THREADS,
    };
    static_assert(N * PIECES % THREADS == 0, "the threads copy the same number of pieces of weights");
    int32_t n_pieces, n_activation_pieces; /* of a row */
    /* What the thread copies for stage 0. NULL: the row is past the end. */
    const uint8_t *weights[COPIES], *activations[ACTIVATION_COPIES];

    MR_INLINE float_ring start(const cuda_product_args &a, const product_tile &tile) {
        int32_t n_units = (a.k + 3) / 4, panel = tile.block * (N / CUDA_PANEL);
        float_ring ring = {float_pieces<T>(n_units), float_activation_pieces<T>(n_units), {}, {}};
        MR_UNROLL
        for (int c = 0; c < COPIES; c++) {
            int32_t i = c * THREADS + (int32_t)gpu_thread(), own = panel + i / PANEL_PIECES;
            const uint8_t *at = tile.w + (size_t)own * (size_t)ring.n_pieces * CUDA_PIECE_BYTES;
            ring.weights[c] = own * CUDA_PANEL < a.n ? at + i % PANEL_PIECES * 16 : nullptr;
        }
        MR_UNROLL
        for (int c = 0; c < ACTIVATION_COPIES; c++) {
            int32_t i = c * THREADS + (int32_t)gpu_thread(), row = i / ACTIVATION_PIECES;
            ring.activations[c] =
                row < tile.n_rows ? product_tile_row(a, tile, row) + i % ACTIVATION_PIECES * 16 : nullptr;
        }
        return ring;
    }

    /* Asks for the pieces of stage s that exist. */
    MR_INLINE void load(const float_ring &ring, uint8_t *stage, int32_t s) {
        MR_UNROLL
        for (int c = 0; c < COPIES; c++) {
            int32_t i = c * THREADS + (int32_t)gpu_thread(), piece = i % PANEL_PIECES / CUDA_PANEL;
            if (ring.weights[c] && s * PIECES + piece < ring.n_pieces)
                gpu_copy16(stage + 16 * i, ring.weights[c] + (size_t)s * PIECES * CUDA_PIECE_BYTES);
        }
        MR_UNROLL
        for (int c = 0; c < ACTIVATION_COPIES; c++) {
            int32_t i = c * THREADS + (int32_t)gpu_thread(), piece = i % ACTIVATION_PIECES;
            if (ring.activations[c] && s * ACTIVATION_PIECES + piece < ring.n_activation_pieces)
                gpu_copy16(stage + WEIGHT_BYTES + i / ACTIVATION_PIECES * ROW_STRIDE + piece * PIECE_STRIDE,
                           ring.activations[c] + (size_t)s * ACTIVATION_PIECES * 16);
        }
        gpu_copy_commit();
    }

    /* Where unit u of a stage lies in row 0 of the stage's weights, and in row 0 of its activations. */
    MR_INLINE const uint8_t *weight_unit(const uint8_t *stage, int32_t u) {
        return stage + u * T::BYTES / 4 * CUDA_PIECE_BYTES + u * T::BYTES % 4 * 4;
    }
    MR_INLINE const uint8_t *activation_unit(const uint8_t *stage, int32_t u) {
        return stage + WEIGHT_BYTES + u * T::ACTIVATION_BYTES / 4 * PIECE_STRIDE + u * T::ACTIVATION_BYTES % 4 * 4;
    }
};

#endif
