/* backends/cuda/kernels/gpu_activations.h - writes activations of any type: f32, BF16 (rule M), or A8 (rule Q of
 * engine/NUMERICS.md). Eight lanes have a block of 32 columns, and each lane has four of them: 2 j, 2 j + 1, 2 j + 16
 * and 2 j + 17, where j is lane % 8. So the sums of rule Q need three shuffles. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_ACTIVATIONS_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_ACTIVATIONS_H

#include <float.h>

#include "backends/cuda/kernels/cuda_activations.h"
#include "backends/cuda/kernels/gpu_rows.h"

/* Column i, 0 .. 3, of this lane in a block of 32. */
MR_INLINE int32_t gpu_column(int32_t block, int i) {
    return block * 32 + 2 * (int32_t)(gpu_lane() % 8) + i % 2 + i / 2 * 16;
}

/* Writes a block in A8 to a row of n columns. */
MR_INLINE void gpu_put_a8(uint8_t *y, int32_t n, int32_t block, const float v[4]) {
    uint32_t max = 0, sums = 0; /* sums: of q + 127 in the low 13 bits, of q * q above them */
    float r[4], t[2];
    MR_UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t u = mr_f32_bits(v[i]) & 0x7fffffffu;
        max = u > max ? u : max;
    }
    MR_UNROLL
    for (int apart = 4; apart > 0; apart /= 2) {
        uint32_t u = gpu_shuffle_xor(max, apart);
        max = u > max ? u : max;
    }
    float amax = mr_bits_f32(max);
    bool is_zero = amax / 127.0f < FLT_MIN, is_number = amax <= FLT_MAX && !is_zero;
    float factor = 127.0f / amax;
    MR_UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = is_number ? (v[i] * factor + MR_EXPF_MAGIC) - MR_EXPF_MAGIC : 0.0f;
        int32_t q = (int32_t)r[i];
        sums += ((uint32_t)(q * q) << 13) + (uint32_t)(q + 127);
    }
    MR_UNROLL
    for (int e = 0; e < 2; e++)
        t[e] = fmaf(v[2 + e], r[2 + e], v[e] * r[e]);
    MR_UNROLL
    for (int apart = 4; apart > 0; apart /= 2) {
        sums += gpu_shuffle_xor(sums, apart);
        t[0] += gpu_shuffle_xor(t[0], apart);
        t[1] += gpu_shuffle_xor(t[1], apart);
    }
    if (block * 32 >= n)
        return;
    MR_UNROLL
    for (int i = 0; i < 4; i += 2) {
        uint16_t pair = (uint16_t)((uint8_t)(int32_t)r[i] | (uint8_t)(int32_t)r[i + 1] << 8);
        memcpy(__builtin_assume_aligned(y + gpu_column(block, i), 2), &pair, 2);
    }
    if (gpu_lane() % 8 == 0) {
        float d = is_number ? (t[0] + t[1]) / (float)(sums >> 13) : is_zero ? 0.0f : mr_bits_f32(0x7fc00000u);
        ((float *)(y + n))[block] = d;
        ((int32_t *)(y + n + n / 8))[block] = (int32_t)(sums & 8191u) - 32 * 127;
    }
}

/* Writes the four columns of this lane to a row; those past the end of the row are left out. All lanes of a warp call
 * this together. */
MR_INLINE void gpu_put(const cuda_activations &y, int32_t row, int32_t block, const float v[4]) {
    uint8_t *at = gpu_row<uint8_t>(y.data, row, y.row_bytes);
    if (y.type == MR_TYPE_A8) {
        gpu_put_a8(at, y.n, block, v);
        return;
    }
    MR_UNROLL
    for (int i = 0; i < 4; i++) {
        int32_t c = gpu_column(block, i);
        if (y.type == MR_TYPE_F32 && c < y.n)
            ((float *)at)[c] = v[i];
        if (y.type == MR_TYPE_BF16 && c < y.n + y.n % 2) /* a zero follows an odd number of columns */
            ((uint16_t *)at)[c] = c < y.n ? mr_f32_to_bf16(v[i]) : 0;
    }
}

/* Reads the four columns of this lane of a row of n columns; zeros past the end. */
MR_INLINE void gpu_take(const float *x, int32_t n, int32_t block, float v[4]) {
    MR_UNROLL
    for (int i = 0; i < 4; i++) {
        int32_t c = gpu_column(block, i);
        v[i] = c < n ? x[c] : 0.0f;
    }
}

#endif
