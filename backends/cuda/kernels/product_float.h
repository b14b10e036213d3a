/* backends/cuda/kernels/product_float.h - products of float matrices: what the types have in common with each other,
 * and what they differ in. Four columns are a unit; a piece of 16 bytes has one unit (F32) or two. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_PRODUCT_FLOAT_H
#define MR_BACKENDS_CUDA_KERNELS_PRODUCT_FLOAT_H

#include "backends/cuda/kernels/product_tile.h"

MR_INLINE gpu_int2 float_half_piece(gpu_int4 piece, int i) {
    return i == 0 ? gpu_int2{piece.x, piece.y} : gpu_int2{piece.z, piece.w};
}

/* A type of matrices. unit is the i-th unit of a piece of weights. weights and activations give the numbers of a unit
 * in the order of the chain: order(i) is the column that comes i-th, padded(n) the length of the chain of the first n
 * columns. */
struct float_f32 {
    enum { BYTES = 4, ACTIVATION_BYTES = 4 };
    typedef gpu_int4 weight_unit, activation_unit;
    MR_INLINE gpu_int4 unit(gpu_int4 piece, int) { return piece; }
    MR_INLINE void weights(gpu_int4 u, float out[4]) {
        out[0] = mr_bits_f32((uint32_t)u.x);
        out[1] = mr_bits_f32((uint32_t)u.y);
        out[2] = mr_bits_f32((uint32_t)u.z);
        out[3] = mr_bits_f32((uint32_t)u.w);
    }
    MR_INLINE void activations(gpu_int4 u, float out[4]) { weights(u, out); }
    MR_INLINE int32_t order(int32_t i) { return i; }
    MR_INLINE int32_t padded(int32_t n) { return n; }
};

struct float_f16 : float_f32 {
    enum { BYTES = 2 };
    typedef gpu_int2 weight_unit;
    MR_INLINE gpu_int2 unit(gpu_int4 piece, int i) { return float_half_piece(piece, i); }
    MR_INLINE void weights(gpu_int2 u, float out[4]) {
        out[0] = gpu_half((uint16_t)u.x);
        out[1] = gpu_half((uint16_t)((uint32_t)u.x >> 16));
        out[2] = gpu_half((uint16_t)u.y);
        out[3] = gpu_half((uint16_t)((uint32_t)u.y >> 16));
    }
};

/* Pairs of columns, the odd one first. An odd last column has a pair that is +0. */
struct float_bf16 {
    enum { BYTES = 2, ACTIVATION_BYTES = 2 };
    typedef gpu_int2 weight_unit, activation_unit;
    MR_INLINE gpu_int2 unit(gpu_int4 piece, int i) { return float_half_piece(piece, i); }
    MR_INLINE void weights(gpu_int2 u, float out[4]) {
        out[0] = mr_bits_f32((uint32_t)u.x & 0xffff0000u);
        out[1] = mr_bits_f32((uint32_t)u.x << 16);
        out[2] = mr_bits_f32((uint32_t)u.y & 0xffff0000u);
        out[3] = mr_bits_f32((uint32_t)u.y << 16);
    }
    MR_INLINE void activations(gpu_int2 u, float out[4]) { weights(u, out); }
    MR_INLINE int32_t order(int32_t i) { return i ^ 1; }
    MR_INLINE int32_t padded(int32_t n) { return n + n % 2; }
};

/* Continues a chain by a unit. whole: all four columns; else the first n, 1 to 3. */
template <class T, bool whole> MR_INLINE float float_chain(const float w[4], const float a[4], int32_t n, float acc) {
    MR_UNROLL
    for (int i = 0; i < 4; i++)
        if (whole)
            acc = fmaf(w[i], a[i], acc);
        else if (i < T::padded(n))
            acc = fmaf(w[i], T::order(i) < n ? a[i] : 0.0f, acc);
    return acc;
}

/* Units of a piece of weights; pieces of 16 bytes that n_units of a row of weights, or of activations, lie in. */
template <class T> MR_INLINE constexpr int32_t float_piece_units() {
    return 4 / T::BYTES;
}
template <class T> MR_INLINE constexpr int32_t float_pieces(int32_t n_units) {
    return (n_units * T::BYTES + 3) / 4;
}
template <class T> MR_INLINE constexpr int32_t float_activation_pieces(int32_t n_units) {
    return (n_units * T::ACTIVATION_BYTES + 3) / 4;
}

#endif
