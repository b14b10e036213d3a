/* backends/cuda/kernels/product_types.h - what the integer products of each type of weights differ in: how a lane reads
 * a tile of a panel (cuda_panels.h), and one step of the chain of rule M. The kernels of few and of many rows share
 * this.
 *
 *     int a[4];
 *     product_sums<T> sums;
 *     T::unpack(quants, i, a);                // the fragment of tile i of a step
 *     product_multiply<T>(sums, a, b);
 *     product_chain<T>(acc, sums, T::scales(scale_words, i), activations);
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
#include "engine/tensor/quant.h"

/* How a chain goes on. SCALE: a step for each tile. MIN: the same, then a step of the minimum. BLOCK: the tiles of a
 * step are a chain of their own, which then is a step. */
enum product_rule { PRODUCT_SCALE, PRODUCT_MIN, PRODUCT_BLOCK };

static constexpr float PRODUCT_OFFSET = 12582912.0f; /* 1.5 * 2^23 */

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

/* Byte i of a word, minus `minus`, as a float: from the bits of 2^23 + byte. */
MR_INLINE float product_byte(int word, int i, int minus) {
    return mr_bits_f32((uint32_t)gpu_permute(word, 0x4b000000, 0x7650 | i)) - (float)(0x800000 + minus);
}
MR_INLINE void product_halves(int word, float d[2]) {
    d[0] = gpu_half((uint16_t)(word & 0xffff));
    d[1] = gpu_half((uint16_t)((uint32_t)word >> 16));
}

/* The values of nibbles 0 to 3 of a word in out[0], of nibbles 4 to 7 in out[1]. The four bytes of each word of the
 * table are the values of four nibbles. */
MR_INLINE void product_look_up(int word, const int table[4], int out[2]) {
    uint32_t low = (uint32_t)word & 0x77777777u, from = ((uint32_t)word & 0x88888888u) >> 1 | 0x32103210u;
    MR_UNROLL
    for (int i = 0; i < 2; i++) {
        int of_low = gpu_permute(table[0], table[1], (int)(low >> 16 * i)), /* if bit 3 is 0, else of_high */
            of_high = gpu_permute(table[2], table[3], (int)(low >> 16 * i));
        out[i] = gpu_permute(of_low, of_high, (int)(from >> 16 * i));
    }
}
#define PRODUCT_WORD(a, b, c, d)                                                                                       \
    (int)((uint32_t)(uint8_t)(a) | (uint32_t)(uint8_t)(b) << 8 | (uint32_t)(uint8_t)(c) << 16 |                        \
          (uint32_t)(uint8_t)(d) << 24)
#define PRODUCT_WORDS(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)                                                  \
    { PRODUCT_WORD(a, b, c, d), PRODUCT_WORD(e, f, g, h), PRODUCT_WORD(i, j, k, l), PRODUCT_WORD(m, n, o, p) }
#define PRODUCT_TABLE(...) PRODUCT_WORDS(__VA_ARGS__)
MR_INLINE void product_look_up_iq4(int word, int out[2]) {
    const int table[4] = PRODUCT_TABLE(MR_IQ4_VALUES);
    product_look_up(word, table, out);
}
MR_INLINE void product_look_up_mxfp4(int word, int out[2]) {
    const int table[4] = PRODUCT_TABLE(MR_MXFP4_VALUES);
    product_look_up(word, table, out);
}

/* --- The types ---------------------------------------------------------------------------------------------------- */
/* WORDS: words of scales of a lane. The first COMMON of them serve all tiles of a step; then four serve the tiles of
 * each quad, and read_quad reads these. read_common and read_quad take the first scale of a step in the device's
 * memory. scales and unpack give tile i of the step. */

/* A d for each row and tile. */
struct product_d {
    enum { WORDS = 4, COMMON = 4 };
    static constexpr product_rule RULE = PRODUCT_SCALE;
    MR_INLINE void read_common(const uint8_t *step, uint32_t g, int words[COMMON]) {
        product_words(gpu_read((const gpu_int4 *)(step + 16 * g)), words);
    }
    MR_INLINE weight_scales scales(const int *words, int i) {
        weight_scales s;
        product_halves(words[i], s.d);
        return s;
    }
};

struct product_q8_0 : panel_q8_0, product_d {
    static constexpr float OFFSET = PRODUCT_OFFSET;
    MR_INLINE void unpack(const int *quants, int i, int a[4]) {
        MR_UNROLL
        for (int j = 0; j < 4; j++)
            a[j] = quants[4 * i + j];
    }
};

/* The fragment has 16 times the values. */
struct product_q4_0 : panel_q4_0, product_d {
    static constexpr float OFFSET = PRODUCT_OFFSET / 16;
    MR_INLINE void unpack(const int *quants, int i, int a[4]) {
        MR_UNROLL
        for (int h = 0; h < 2; h++) {
            uint32_t w = (uint32_t)quants[2 * i + h];
            a[2 * h] = (int)(w << 4 & 0xf0f0f0f0u);
            a[2 * h + 1] = (int)(w & 0xf0f0f0f0u);
        }
    }
};

struct product_iq4_nl : panel_iq4_nl, product_d {
    static constexpr float OFFSET = PRODUCT_OFFSET;
    MR_INLINE void unpack(const int *quants, int i, int a[4]) {
        product_look_up_iq4(quants[2 * i], a);
        product_look_up_iq4(quants[2 * i + 1], a + 2);
    }
};

struct product_mxfp4 : panel_mxfp4 {
    enum { WORDS = 2, COMMON = 2 };
    static constexpr product_rule RULE = PRODUCT_SCALE;
    static constexpr float OFFSET = PRODUCT_OFFSET;
    MR_INLINE void unpack(const int *quants, int i, int a[4]) {
        product_look_up_mxfp4(quants[2 * i], a);
        product_look_up_mxfp4(quants[2 * i + 1], a + 2);
    }
    MR_INLINE void read_common(const uint8_t *step, uint32_t g, int words[COMMON]) {
        gpu_int2 v = gpu_read((const gpu_int2 *)(step + 8 * g));
        words[0] = v.x;
        words[1] = v.y;
    }
    MR_INLINE weight_scales scales(const int *words, int i) {
        weight_scales s;
        MR_UNROLL
        for (int r = 0; r < 2; r++)
            s.d[r] = mr_bits_f32((uint32_t)words[i / 2] >> (16 * (i % 2) + 8 * r) << 24 >> 1);
        return s;
    }
};

struct product_iq4_xs : panel_iq4_xs {
    enum { WORDS = 5, COMMON = 5 };
    static constexpr product_rule RULE = PRODUCT_SCALE;
    static constexpr float OFFSET = PRODUCT_OFFSET;
    MR_INLINE void unpack(const int *quants, int i, int a[4]) { product_iq4_nl::unpack(quants, i, a); }
    MR_INLINE void read_common(const uint8_t *step, uint32_t g, int words[COMMON]) {
        words[0] = gpu_read((const int *)(step + 4 * g));
        product_words(gpu_read((const gpu_int4 *)(step + 32 + 16 * g)), words + 1);
    }
    MR_INLINE weight_scales scales(const int *words, int i) {
        weight_scales s;
        product_halves(words[0], s.d);
        MR_UNROLL
        for (int r = 0; r < 2; r++)
            s.d[r] *= product_byte(words[1 + i / 2], 2 * (i % 2) + r, 128);
        return s;
    }
};

struct product_q4_k : panel_q4_k {
    enum { WORDS = 10, COMMON = 2 };
    static constexpr product_rule RULE = PRODUCT_MIN;
    static constexpr float OFFSET = PRODUCT_OFFSET;
    MR_INLINE void unpack(const int *quants, int i, int a[4]) {
        MR_UNROLL
        for (int h = 0; h < 2; h++) {
            uint32_t w = (uint32_t)quants[2 * i + h];
            a[2 * h] = (int)(w & 0x0f0f0f0fu);
            a[2 * h + 1] = (int)(w >> 4 & 0x0f0f0f0fu);
        }
    }
    MR_INLINE void read_common(const uint8_t *step, uint32_t g, int words[COMMON]) {
        gpu_int2 v = gpu_read((const gpu_int2 *)(step + 8 * g));
        words[0] = v.x;
        words[1] = v.y;
    }
    MR_INLINE void read_quad(const uint8_t *step, uint32_t g, int quad, int words[4]) {
        product_words(gpu_read((const gpu_int4 *)(step + 64 + 128 * quad + 16 * g)), words);
    }
    MR_INLINE weight_scales scales(const int *words, int i) {
        weight_scales s;
        product_halves(words[0], s.d);
        product_halves(words[1], s.min);
        MR_UNROLL
        for (int r = 0; r < 2; r++) {
            s.d[r] *= product_byte(words[2 + i], r, 0);
            s.min[r] = -(s.min[r] * product_byte(words[2 + i], 2 + r, 0));
        }
        return s;
    }
};

struct product_q5_k : panel_q5_k {
    enum { WORDS = product_q4_k::WORDS, COMMON = product_q4_k::COMMON };
    static constexpr product_rule RULE = PRODUCT_MIN;
    static constexpr float OFFSET = PRODUCT_OFFSET;
    MR_INLINE void unpack(const int *quants, int i, int a[4]) {
        product_q4_k::unpack(quants, i, a);
        MR_UNROLL
        for (int j = 0; j < 4; j++) {
            uint32_t high = (uint32_t)quants[16 + i / 2];
            int bit = 4 * (i % 2) + j; /* goes to bit 4 */
            a[j] |= (int)((bit < 4 ? high << (4 - bit) : high >> (bit - 4)) & 0x10101010u);
        }
    }
    MR_INLINE void read_common(const uint8_t *step, uint32_t g, int words[COMMON]) {
        product_q4_k::read_common(step, g, words);
    }
    MR_INLINE void read_quad(const uint8_t *step, uint32_t g, int quad, int words[4]) {
        product_q4_k::read_quad(step, g, quad, words);
    }
    MR_INLINE weight_scales scales(const int *words, int i) { return product_q4_k::scales(words, i); }
};

/* The fragment has 4 times the values. */
struct product_q6_k : panel_q6_k {
    enum { WORDS = 9, COMMON = 1 };
    static constexpr product_rule RULE = PRODUCT_BLOCK;
    static constexpr float OFFSET = PRODUCT_OFFSET / 4;
    MR_INLINE void unpack(const int *quants, int i, int a[4]) {
        const uint32_t w[3] = {(uint32_t)quants[3 * i], (uint32_t)quants[3 * i + 1], (uint32_t)quants[3 * i + 2]};
        MR_UNROLL
        for (int j = 0; j < 3; j++)
            a[j] = (int)(w[j] & 0xfcfcfcfcu);
        a[3] = (int)((w[0] << 6 & 0xc0c0c0c0u) | (w[1] << 4 & 0x30303030u) | (w[2] << 2 & 0x0c0c0c0cu));
    }
    MR_INLINE void read_common(const uint8_t *step, uint32_t g, int words[COMMON]) {
        words[0] = gpu_read((const int *)(step + 4 * g));
    }
    MR_INLINE void read_quad(const uint8_t *step, uint32_t g, int quad, int words[4]) {
        product_words(gpu_read((const gpu_int4 *)(step + 32 + 128 * quad + 16 * g)), words);
    }
    MR_INLINE weight_scales scales(const int *words, int i) {
        weight_scales s;
        product_halves(words[0], s.d);
        MR_UNROLL
        for (int b = 0; b < 4; b++)
            s.factor[b / 2][b % 2] = product_byte(words[1 + i], b, 128);
        return s;
    }
};

/* --- Parts of a product ------------------------------------------------------------------------------------------- */

/* Reads all scales of a step. */
template <class T> MR_INLINE void product_read_scales(const uint8_t *step, uint32_t g, int words[T::WORDS]) {
    T::read_common(step, g, words);
    if constexpr (T::WORDS > T::COMMON) {
        MR_UNROLL
        for (int quad = 0; quad < T::STEP / 4; quad++)
            T::read_quad(step, g, quad, words + T::COMMON + 4 * quad);
    }
}

/* The sums of a tile: one for each result, or one for each half (BLOCK). */
template <class T> struct product_sums { int c[T::RULE == PRODUCT_BLOCK ? 2 : 1][4]; };
/* a: the fragment of weights, b: of activations. */
template <class T> MR_INLINE void product_multiply(product_sums<T> &s, const int a[4], const int b[2]) {
    const int start = (int)mr_f32_bits(T::OFFSET);
    if constexpr (T::RULE == PRODUCT_BLOCK) {
        gpu_mma_s8_k16(s.c[0], a, b[0], start);
        gpu_mma_s8_k16(s.c[1], a + 2, b[1], start);
    } else {
        gpu_mma_s8(s.c[0], a, b, start);
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
            /* Integers below 2^24: exact. The addition of 0 gives +0 for -0, as the conversion of an integer does. */
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
