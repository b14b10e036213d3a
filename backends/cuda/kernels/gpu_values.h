/* backends/cuda/kernels/gpu_values.h - the numbers of matrices in the layout of the file (rules E and S of
 * engine/NUMERICS.md). Blocks are read byte by byte, as they lie at any address. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_VALUES_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_VALUES_H

#include "backends/cuda/kernels/gpu.h"
#include "engine/tensor/quant.h"

MR_CONSTANT int8_t gpu_iq4_values[16] = {MR_IQ4_VALUES};
MR_CONSTANT int8_t gpu_mxfp4_values[16] = {MR_MXFP4_VALUES};

MR_INLINE uint32_t gpu_load_16(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8;
}

MR_INLINE int gpu_nibble(const uint8_t q[16], int i) {
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

/* --- Element i of a block ---------------------------------------------------------------------------------------- */

MR_INLINE float gpu_value_q8_0(const uint8_t *block, int i) {
    const mr_block_q8_0 *b = (const mr_block_q8_0 *)block;
    return mr_f16_to_f32(b->d) * (float)b->q[i];
}

MR_INLINE float gpu_value_q4_0(const uint8_t *block, int i) {
    const mr_block_q4_0 *b = (const mr_block_q4_0 *)block;
    return mr_f16_to_f32(b->d) * (float)(gpu_nibble(b->q, i) - 8);
}

MR_INLINE float gpu_value_iq4_nl(const uint8_t *block, int i) {
    const mr_block_q4_0 *b = (const mr_block_q4_0 *)block;
    return mr_f16_to_f32(b->d) * (float)gpu_iq4_values[gpu_nibble(b->q, i)];
}

MR_INLINE float gpu_value_mxfp4(const uint8_t *block, int i) {
    const mr_block_mxfp4 *b = (const mr_block_mxfp4 *)block;
    return mr_mxfp4_scale(b->e) * (float)gpu_mxfp4_values[gpu_nibble(b->q, i)];
}

/* d * sc * q - dmin * m, with the scales of sub-block j. */
MR_INLINE float gpu_value_k4(uint16_t d, uint16_t dmin, const uint8_t scales[12], int j, int q) {
    uint8_t sc, m;
    mr_q4_k_scale(scales, j, &sc, &m);
    return mr_f16_to_f32(d) * (float)sc * (float)q + -(mr_f16_to_f32(dmin) * (float)m);
}

MR_INLINE float gpu_value_q4_k(const uint8_t *block, int i) {
    const mr_block_q4_k *b = (const mr_block_q4_k *)block;
    return gpu_value_k4(b->d, b->dmin, b->scales, i / 32, mr_q4_k_value(b, i));
}

MR_INLINE float gpu_value_q5_k(const uint8_t *block, int i) {
    const mr_block_q5_k *b = (const mr_block_q5_k *)block;
    int low = b->q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15, high = b->high[i % 32] >> (i / 32) & 1;
    return gpu_value_k4(b->d, b->dmin, b->scales, i / 32, low | high << 4);
}

MR_INLINE float gpu_value_q6_k(const uint8_t *block, int i) {
    const mr_block_q6_k *b = (const mr_block_q6_k *)block;
    return mr_f16_to_f32(b->d) * (float)b->sc[i / 16] * (float)(mr_q6_k_value(b, i) - 32);
}

MR_INLINE float gpu_value_iq4_xs(const uint8_t *block, int i) {
    const mr_block_iq4_xs *b = (const mr_block_iq4_xs *)block;
    int q = gpu_iq4_values[gpu_nibble(b->q + i / 32 * 16, i % 32)];
    return mr_f16_to_f32(b->d) * (float)mr_iq4_xs_scale(b, i / 32) * (float)q;
}

/* --- The row ------------------------------------------------------------------------------------------------------ */

template <class Block> MR_INLINE const uint8_t *gpu_block_at(const uint8_t *row, int32_t i, int32_t n) {
    return row + (size_t)(i / n) * sizeof(Block);
}

/* Element i of a row in the layout of the file. */
MR_INLINE float gpu_value(mr_type type, const uint8_t *row, int32_t i) {
    switch (type) {
    case MR_TYPE_F16:
        return gpu_half((uint16_t)gpu_load_16(row + 2 * (size_t)i));
    case MR_TYPE_BF16:
        return mr_bits_f32(gpu_load_16(row + 2 * (size_t)i) << 16);
    case MR_TYPE_Q8_0:
        return gpu_value_q8_0(gpu_block_at<mr_block_q8_0>(row, i, 32), i % 32);
    case MR_TYPE_Q4_0:
        return gpu_value_q4_0(gpu_block_at<mr_block_q4_0>(row, i, 32), i % 32);
    case MR_TYPE_IQ4_NL:
        return gpu_value_iq4_nl(gpu_block_at<mr_block_q4_0>(row, i, 32), i % 32);
    case MR_TYPE_MXFP4:
        return gpu_value_mxfp4(gpu_block_at<mr_block_mxfp4>(row, i, 32), i % 32);
    case MR_TYPE_Q4_K:
        return gpu_value_q4_k(gpu_block_at<mr_block_q4_k>(row, i, 256), i % 256);
    case MR_TYPE_Q5_K:
        return gpu_value_q5_k(gpu_block_at<mr_block_q5_k>(row, i, 256), i % 256);
    case MR_TYPE_Q6_K:
        return gpu_value_q6_k(gpu_block_at<mr_block_q6_k>(row, i, 256), i % 256);
    case MR_TYPE_IQ4_XS:
        return gpu_value_iq4_xs(gpu_block_at<mr_block_iq4_xs>(row, i, 256), i % 256);
    default:
        return mr_bits_f32(gpu_load_16(row + 4 * (size_t)i) | gpu_load_16(row + 4 * (size_t)i + 2) << 16);
    }
}

#endif
