/* backends/cuda/kernels/product_types.h - what the integer products of each type of weights differ in: how a lane reads
 * a tile of a panel (cuda_panels.h), and one step of the chain of rule M. The kernels of few and of many rows share
 * this.
 *
 *     product_fragment<T> a = product_unpack<T>(quants, scale_words, i); // of tile i of a step
 *     product_sums<T> sums;
 *     product_multiply<T>(sums, a, b);
 *     product_chain<T>(acc, sums, T::scales(scale_words, i), activations);
 *
 * Sums of products. The four accumulators of gpu_mma_s8 start at the bits of 1.5 * 2^n, whose last bit is worth 1, or
 * 1/4 or 1/16 for types whose fragments are values times 4 or 16. The sum as a float is then one subtraction (OFFSET),
 * which is exact: |sum| is at most 255 * 128 * 32 < 2^22 of these bits.
 * Lanes. Lane 4g + t has the results of rows g and g + 8 of the panel (r = 0, 1) and of columns 2t and 2t + 1 of the
 * activations: result j is row j / 2, column j % 2. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_PRODUCT_TYPES_H
#define MR_BACKENDS_CUDA_KERNELS_PRODUCT_TYPES_H

#include "backends/cuda/kernels/cuda_panels.h"
#include "backends/cuda/kernels/gpu.h"
#include "engine/tensor/quant.h"

/* How a chain goes on. SCALE: a step for each tile. MIN: the same, then a step of the minimum. BLOCK: the tiles of a
 * step are a chain of their own, which then is a step. The fragment has the products of values and integer scales: 256
 * times its first plane plus the second, whose bytes are unsigned. So a step has the sum of a tile with two scales. */
enum product_rule { PRODUCT_SCALE, PRODUCT_MIN, PRODUCT_BLOCK };

static constexpr float PRODUCT_OFFSET = 12582912.0f; /* 1.5 * 2^23 */

/* The scales of two rows of a tile. SCALE: d of the rule. MIN: min is -(dmin * m). BLOCK: d of the block. */
struct weight_scales {
    float d[2], min[2];
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
/* WORDS: words of scales of a lane. The first COMMON of them serve all tiles of a step; then OF_QUAD serve the tiles of
 * each quad, and read_quad reads these. read_common and read_quad take the first scale of a step in the device's
 * memory. scales and unpack give tile i of the step. */

/* A d for each row and tile. */
struct product_d {
    enum { WORDS = 4, COMMON = 4, OF_QUAD = 0 };
    static constexpr product_rule RULE = PRODUCT_SCALE;
    MR_INLINE void read_common(const uint8_t *step, uint32_t g, int words[COMMON]) {
        product_words(gpu_read((const gpu_int4 *)(step + 16 * g)), words);
    }
    MR_INLINE weight_scales scales(const int *words, int i) {
        weight_scales s = {};
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
    enum { WORDS = 2, COMMON = 2, OF_QUAD = 0 };
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
        weight_scales s = {};
        MR_UNROLL
        for (int r = 0; r < 2; r++)
            s.d[r] = mr_bits_f32((uint32_t)words[i / 2] >> (16 * (i % 2) + 8 * r) << 24 >> 1);
        return s;
    }
};

struct product_iq4_xs : panel_iq4_xs {
    enum { WORDS = 5, COMMON = 5, OF_QUAD = 0 };
    static constexpr product_rule RULE = PRODUCT_SCALE;
    static constexpr float OFFSET = PRODUCT_OFFSET;
    MR_INLINE void unpack(const int *quants, int i, int a[4]) { product_iq4_nl::unpack(quants, i, a); }
    MR_INLINE void read_common(const uint8_t *step, uint32_t g, int words[COMMON]) {
        words[0] = gpu_read((const int *)(step + 4 * g));
        product_words(gpu_read((const gpu_int4 *)(step + 32 + 16 * g)), words + 1);
    }
    MR_INLINE weight_scales scales(const int *words, int i) {
        weight_scales s = {};
        product_halves(words[0], s.d);
        MR_UNROLL
        for (int r = 0; r < 2; r++)
            s.d[r] *= product_byte(words[1 + i / 2], 2 * (i % 2) + r, 128);
        return s;
    }
};

struct product_q4_k : panel_q4_k {
    enum { WORDS = 10, COMMON = 2, OF_QUAD = 4 };
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
        weight_scales s = {};
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
    enum { WORDS = product_q4_k::WORDS, COMMON = product_q4_k::COMMON, OF_QUAD = product_q4_k::OF_QUAD };
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

/* The fragment has 4 times the products. All values that a lane has of a row are of the same half of the tile, and so
 * have the same scale. */
struct product_q6_k : panel_q6_k {
    enum { WORDS = 5, COMMON = 1, OF_QUAD = 2 };
    static constexpr product_rule RULE = PRODUCT_BLOCK;
    static constexpr float OFFSET = PRODUCT_OFFSET / 4;
    /* Two products of 16 bits in a word: 4 (q + 32) sc - 128 sc + 2^15. offset: what is added to the first term. */
    MR_INLINE uint32_t offset(uint32_t sc) { return gpu_opaque(0x80008000u - sc * (128 * 0x10001)); }
    MR_INLINE int multiply(uint32_t q, uint32_t sc, uint32_t offset) { return (int)((q & 0x00fc00fcu) * sc + offset); }
    MR_INLINE void unpack(const int *quants, const int *scales, int i, int a[2][4]) {
        const uint32_t w[3] = {(uint32_t)quants[3 * i], (uint32_t)quants[3 * i + 1], (uint32_t)quants[3 * i + 2]};
        const uint32_t last = (w[0] << 6 & 0xc0c0c0c0u) | (w[1] << 4 & 0x30303030u) | (w[2] << 2 & 0x0c0c0c0cu);
        uint32_t sc[2], offsets[2];
        MR_UNROLL
        for (int r = 0; r < 2; r++) {
            sc[r] = (uint32_t)(int8_t)(scales[1 + i / 2] >> (16 * (i % 2) + 8 * r));
            offsets[r] = offset(sc[r]);
        }
        MR_UNROLL
        for (int j = 0; j < 4; j++) {
            uint32_t q = j < 3 ? w[j] : last;
            int even = multiply(q, sc[j % 2], offsets[j % 2]), odd = multiply(q >> 8, sc[j % 2], offsets[j % 2]);
            a[0][j] = (int)((uint32_t)gpu_permute(even, odd, 0x7351) ^ 0x80808080u);
            a[1][j] = gpu_permute(even, odd, 0x6240);
        }
    }
    MR_INLINE void read_common(const uint8_t *step, uint32_t g, int words[COMMON]) {
        words[0] = gpu_read((const int *)(step + 4 * g));
    }
    MR_INLINE void read_quad(const uint8_t *step, uint32_t g, int quad, int words[OF_QUAD]) {
        uint32_t half = gpu_lane() % 4 / 2;
        gpu_int2 v = gpu_read((const gpu_int2 *)(step + 32 + 128 * quad + 16 * g + 8 * half));
        words[0] = v.x;
        words[1] = v.y;
    }
    MR_INLINE weight_scales scales(const int *words, int i) {
        (void)i;
        weight_scales s = {};
        product_halves(words[0], s.d);
        return s;
    }
};

/* --- Parts of a product ------------------------------------------------------------------------------------------- */

/* Reads all scales of a step. */
template <class T> MR_INLINE void product_read_scales(const uint8_t *step, uint32_t g, int words[T::WORDS]) {
    T::read_common(step, g, words);
    if constexpr (T::OF_QUAD > 0) {
        MR_UNROLL
        for (int quad = 0; quad < T::STEP / 4; quad++)
            T::read_quad(step, g, quad, words + T::COMMON + T::OF_QUAD * quad);
    }
}

/* A lane's part of a tile of weights. */
template <class T> struct product_fragment { int a[T::RULE == PRODUCT_BLOCK ? 2 : 1][4]; };
/* The fragment of tile i of a step. */
template <class T> MR_INLINE product_fragment<T> product_unpack(const int *quants, const int *scales, int i) {
    product_fragment<T> f;
    if constexpr (T::RULE == PRODUCT_BLOCK)
        T::unpack(quants, scales, i, f.a);
    else
        T::unpack(quants, i, f.a[0]);
    MR_UNROLL
    for (int j = 0; j < (int)(sizeof f / sizeof f.a[0][0]); j++) /* else the compiler unpacks again for other columns */
        f.a[j / 4][j % 4] = (int)gpu_opaque((uint32_t)f.a[j / 4][j % 4]);
    return f;
}

/* What the accumulators of gpu_mma_s8 start at. k: columns of the matrix, a multiple of 32, whose last bits are 0. The
 * compiler does not know this, and so keeps four registers side by side, as gpu_mma_s8 needs them. For sm_80 it would
 * write constants there again before most multiplications, three instructions for each. */
struct product_start {
    int c[4];
};
template <class T> MR_INLINE product_start product_start_of(int32_t k) {
    product_start s;
    MR_UNROLL
    for (int i = 0; i < 4; i++)
        s.c[i] = (int)mr_f32_bits(T::OFFSET) + (k & 1 << i);
    return s;
}

/* The sums of a tile for each result, of each plane. b: the fragment of activations. */
template <class T> struct product_sums { int c[T::RULE == PRODUCT_BLOCK ? 2 : 1][4]; };
template <class T>
MR_INLINE void product_multiply(product_sums<T> &s, const product_fragment<T> &f, const int b[2],
                                const product_start &start) {
    gpu_mma_s8(s.c[0], f.a[0], b, start.c);
    if constexpr (T::RULE == PRODUCT_BLOCK)
        gpu_mma_u8(s.c[1], f.a[1], b, start.c);
}
/* The lane's activations of a tile, for product_multiply. column: the 32 bytes of column g. */
MR_INLINE void product_read_activations(const uint8_t *column, uint32_t t, int b[2]) {
    gpu_int2 v = gpu_read((const gpu_int2 *)(column + 8 * t));
    b[0] = v.x;
    b[1] = v.y;
}

/* The sum of a tile: result j. BLOCK: 256 times the first plane is exact, and so is the sum, an integer below 2^24. A
 * sum of 0 is +0, as the conversion of an integer gives it. */
template <class T> MR_INLINE float product_sum(const product_sums<T> &s, int j) {
    if constexpr (T::RULE == PRODUCT_BLOCK)
        return fmaf(256.0f, mr_bits_f32((uint32_t)s.c[0][j]), -257.0f * T::OFFSET) + mr_bits_f32((uint32_t)s.c[1][j]);
    else
        return mr_bits_f32((uint32_t)s.c[0][j]) - T::OFFSET;
}

/* One step of the chains of a lane's four results. BLOCK: of the chains of the block; product_chain_block adds them. */
template <class T>
MR_INLINE void product_chain(float acc[4], const product_sums<T> &s, const weight_scales &w,
                             const activation_scales &x) {
    MR_UNROLL
    for (int j = 0; j < 4; j++) {
        int r = j / 2, column = j % 2;
        float d = T::RULE == PRODUCT_BLOCK ? x.d[column] : w.d[r] * x.d[column];
        acc[j] = fmaf(product_sum<T>(s, j), d, acc[j]);
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
