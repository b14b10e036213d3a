/* backends/cuda/kernels/product_types.h - what the integer products of each type of weights differ in: how a lane reads
 * a tile of a panel (cuda_panels.h), and one step of the chain of rule M. The kernels of few and of many rows share
 * this.
 *
 *     int a[4], c[4];
 *     T::unpack(quants, i, a);              // the fragment of tile i of a step
 *     product_start<T>(c);
 *     gpu_mma_s8(c, a, b);
 *     product_chain<T>(acc, c, T::scales(scale_words, i), activations);
 *
 * Sums of products. The four accumulators of gpu_mma_s8 start at the bits of 1.5 * 2^n, whose last bit is worth 1, or
 * 1/4 or 1/16 for types whose fragments are values times 4 or 16. The sum as a float is then one subtraction (OFFSET),
 * which is exact: |sum| is at most 128 * 127 * 32 < 2^22 of these bits.
 * Lanes. Lane 4g + t has the results of rows g and g + 8 of the panel (r = 0, 1) and of columns 2t and 2t + 1 of the
 * activations: result j is row j / 2, column j % 2. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_PRODUCT_TYPES_H
#define MR_BACKENDS_CUDA_KERNELS_PRODUCT_TYPES_H

#include "backends/cuda/kernels/cuda_panels.h"
#include "backends/cuda/kernels/gpu.h"

/* How a chain goes on. SCALE: a step for each tile. MIN: the same, then a step of the minimum. BLOCK: the tiles of a
 * step are a chain of their own, which then is a step. */
enum product_rule { PRODUCT_SCALE, PRODUCT_MIN, PRODUCT_BLOCK };

/* The scales of two rows of a tile. SCALE: d of the rule. MIN: min is -(dmin * m). BLOCK: d of the block; factor[r][h]
 * of half h. */
struct weight_scales {
    float d[2], min[2], factor[2][2];
};
/* Of two columns of activations: d_a, and d_a * (float)sum_a for MIN. */
struct activation_scales {
    float d[2], sum[2];
};

MR_INLINE void product_words(gpu_int4 v, int out[4]) {
    out[0] = v.x;
    out[1] = v.y;
    out[2] = v.z;
    out[3] = v.w;
}

/* Byte i of a word as a float, from the bits of 2^23 + byte. */
MR_INLINE float product_byte(int word, int i) {
    return mr_bits_f32((uint32_t)gpu_permute(word, 0x4b000000, 0x7650 | i));
}
MR_INLINE void product_halves(int word, float d[2]) {
    d[0] = gpu_half((uint16_t)(word & 0xffff));
    d[1] = gpu_half((uint16_t)((uint32_t)word >> 16));
}

/* --- The types ---------------------------------------------------------------------------------------------------- */
/* READS: reads of 16 bytes of a lane for the quants of a step. WORDS: words of scales of a lane. DEPTH: steps that the
 * kernels of few rows read ahead. */

struct product_q8_0 {
    enum {
        UNIT = PANEL_Q8_0_UNIT,
        UNIT_BYTES = PANEL_Q8_0_UNIT_BYTES,
        STEP = PANEL_Q8_0_STEP,
        STEP_BYTES = PANEL_Q8_0_STEP_BYTES,
        READS = 4,
        WORDS = 4,
        DEPTH = 3,
    };
    static constexpr product_rule RULE = PRODUCT_SCALE;
    static constexpr float OFFSET = 12582912.0f; /* 1.5 * 2^23 */
    MR_INLINE void unpack(const int *quants, int i, int a[4]) {
        MR_UNROLL
        for (int j = 0; j < 4; j++)
            a[j] = quants[4 * i + j];
    }
    /* step: the first scale of a step, in the device's memory. */
    MR_INLINE void read_scales(const uint8_t *step, uint32_t g, int words[WORDS]) {
        product_words(gpu_read((const gpu_int4 *)(step + 16 * g)), words);
    }
    MR_INLINE weight_scales scales(const int *words, int i) {
        weight_scales s;
        product_halves(words[i], s.d);
        return s;
    }
};

/* --- Parts of a product ------------------------------------------------------------------------------------------- */

template <class T> MR_INLINE void product_start(int c[4]) {
    MR_UNROLL
    for (int j = 0; j < 4; j++)
        c[j] = (int)mr_f32_bits(T::OFFSET);
}

/* The sums of a tile: one for each result, or one for each half (BLOCK). */
template <class T> struct product_sums { int c[T::RULE == PRODUCT_BLOCK ? 2 : 1][4]; };
/* a: the fragment of weights, b: of activations. */
template <class T> MR_INLINE void product_multiply(product_sums<T> &s, const int a[4], const int b[2]) {
    product_start<T>(s.c[0]);
    if constexpr (T::RULE == PRODUCT_BLOCK) {
        product_start<T>(s.c[1]);
        gpu_mma_s8_k16(s.c[0], a, b[0]);
        gpu_mma_s8_k16(s.c[1], a + 2, b[1]);
    } else {
        gpu_mma_s8(s.c[0], a, b);
    }
}
/* The lane's activations of a tile, for product_multiply. column: the 32 bytes of column g. */
template <class T> MR_INLINE void product_read_activations(const uint8_t *column, uint32_t t, int b[2]) {
    if constexpr (T::RULE == PRODUCT_BLOCK) {
        b[0] = gpu_read((const int *)(column + 4 * t));
        b[1] = gpu_read((const int *)(column + 16 + 4 * t));
    } else {
        gpu_int2 v = gpu_read((const gpu_int2 *)(column + 8 * t));
        b[0] = v.x;
        b[1] = v.y;
    }
}

/* One step of the chains of a lane's four results. BLOCK: of the chains of the block; product_chain_block adds them. */
template <class T>
MR_INLINE void product_chain(float acc[4], const product_sums<T> &s, const weight_scales &w,
                             const activation_scales &x) {
    MR_UNROLL
    for (int j = 0; j < 4; j++) {
        int r = j / 2, column = j % 2;
        float isum = mr_bits_f32((uint32_t)s.c[0][j]) - T::OFFSET;
        if constexpr (T::RULE == PRODUCT_BLOCK) {
            /* Integers below 2^24, so exact. The addition of 0 gives +0 for -0, as the conversion of an integer does. */
            float second = mr_bits_f32((uint32_t)s.c[1][j]) - T::OFFSET;
            isum = fmaf(w.factor[r][1], second, fmaf(w.factor[r][0], isum, 0.0f));
            acc[j] = fmaf(isum, x.d[column], acc[j]);
        } else {
            acc[j] = fmaf(isum, w.d[r] * x.d[column], acc[j]);
        }
        if constexpr (T::RULE == PRODUCT_MIN)
            acc[j] = fmaf(w.min[r], x.sum[column], acc[j]);
    }
}
template <class T> MR_INLINE void product_chain_block(float acc[4], const float block[4], const weight_scales &w) {
    MR_UNROLL
    for (int j = 0; j < 4; j++)
        acc[j] = fmaf(block[j], w.d[j / 2], acc[j]);
}

#endif
