/* backends/cuda/kernels/gpu_sparse_types.h - tiles of quantised rows in the layout of the file: 32 columns each, with
 * the numbers of rule M. The kernels of the dense products have another layout: product_types.h.
 *
 *     typename T::raw raw;
 *     T::read(row, tile, raw);            // from the device's memory
 *     gpu_tile w = T::unpack(raw, tile);
 *     float isum = (float)T::sum(w, halves, sum_a);
 *
 * RULE: how a chain goes on, as in product_types.h. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_SPARSE_TYPES_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_SPARSE_TYPES_H

#include "backends/cuda/kernels/product_types.h"

struct gpu_tile {
    int q[8];      /* columns 4j to 4j + 3 */
    float d, min;  /* min: -(dmin * m) */
    int scales[2]; /* of the halves, BLOCK alone */
};

/* Reads N halves, or units of 16 bytes, that lie side by side. */
template <int N> MR_INLINE void gpu_read_halves(const uint8_t *at, uint16_t out[N]) {
    MR_UNROLL
    for (int i = 0; i < N; i++)
        out[i] = gpu_read((const uint16_t *)at + i);
}
MR_INLINE int gpu_join_halves(const uint16_t *h) {
    return (int)(h[0] | (uint32_t)h[1] << 16);
}
/* A word of four bytes, as nibbles: low ones, then high ones. */
MR_INLINE void gpu_split_nibbles(const int words[4], int q[8]) {
    MR_UNROLL
    for (int j = 0; j < 4; j++) {
        q[j] = words[j] & 0x0f0f0f0f;
        q[4 + j] = words[j] >> 4 & 0x0f0f0f0f;
    }
}
/* The same with the values of a table. */
template <class Look> MR_INLINE void gpu_look_up_nibbles(const int words[4], int q[8], Look look_up) {
    MR_UNROLL
    for (int j = 0; j < 4; j++) {
        int values[2]; /* of the low and the high nibbles of two bytes each, in turns */
        look_up(words[j], values);
        q[j] = gpu_permute(values[0], values[1], 0x6420);
        q[4 + j] = gpu_permute(values[0], values[1], 0x7531);
    }
}

/* --- One block a tile --------------------------------------------------------------------------------------------- */

/* The integer sum is that of q times activations, minus `minus` times the activations. */
template <int minus> struct sparse_sum {
    static constexpr product_rule RULE = PRODUCT_SCALE;
    MR_INLINE int sum(const gpu_tile &, const int halves[2], int sum_a) {
        return halves[0] + halves[1] - minus * sum_a;
    }
};

struct sparse_q8_0 : sparse_sum<0> {
    typedef uint16_t raw[17];
    MR_INLINE void read(const uint8_t *row, int32_t tile, raw &out) {
        gpu_read_halves<17>(row + (size_t)tile * sizeof(mr_block_q8_0), out);
    }
    MR_INLINE gpu_tile unpack(const raw &in, int32_t) {
        gpu_tile t = {};
        t.d = gpu_half(in[0]);
        MR_UNROLL
        for (int j = 0; j < 8; j++)
            t.q[j] = gpu_join_halves(in + 1 + 2 * j);
        return t;
    }
};

struct sparse_nibbles {
    typedef uint16_t raw[9];
    MR_INLINE void read(const uint8_t *row, int32_t tile, raw &out) {
        gpu_read_halves<9>(row + (size_t)tile * sizeof(mr_block_q4_0), out);
    }
    MR_INLINE void words(const raw &in, int out[4]) {
        MR_UNROLL
        for (int j = 0; j < 4; j++)
            out[j] = gpu_join_halves(in + 1 + 2 * j);
    }
};

struct sparse_q4_0 : sparse_nibbles, sparse_sum<8> {
    MR_INLINE gpu_tile unpack(const raw &in, int32_t) {
        gpu_tile t = {};
        int w[4];
        words(in, w);
        t.d = gpu_half(in[0]);
        gpu_split_nibbles(w, t.q);
        return t;
    }
};

struct sparse_iq4_nl : sparse_nibbles, sparse_sum<0> {
    MR_INLINE gpu_tile unpack(const raw &in, int32_t) {
        gpu_tile t = {};
        int w[4];
        words(in, w);
        t.d = gpu_half(in[0]);
        gpu_look_up_nibbles(w, t.q, product_look_up_iq4);
        return t;
    }
};

struct sparse_mxfp4 : sparse_sum<0> {
    typedef uint8_t raw[17];
    MR_INLINE void read(const uint8_t *row, int32_t tile, raw &out) {
        MR_UNROLL
        for (int i = 0; i < 17; i++)
            out[i] = gpu_read(row + (size_t)tile * sizeof(mr_block_mxfp4) + i);
    }
    MR_INLINE gpu_tile unpack(const raw &in, int32_t) {
        gpu_tile t = {};
        int w[4];
        MR_UNROLL
        for (int j = 0; j < 4; j++)
            w[j] = PRODUCT_WORD(in[4 * j + 1], in[4 * j + 2], in[4 * j + 3], in[4 * j + 4]);
        t.d = mr_mxfp4_scale(in[0]);
        gpu_look_up_nibbles(w, t.q, product_look_up_mxfp4);
        return t;
    }
};

/* --- Eight tiles a block ------------------------------------------------------------------------------------------ */

template <class Block> MR_INLINE const uint8_t *sparse_block(const uint8_t *row, int32_t tile) {
    return row + (size_t)(tile / 8) * sizeof(Block);
}

struct sparse_iq4_xs : sparse_sum<0> {
    typedef gpu_int2 raw[3];
    MR_INLINE void read(const uint8_t *row, int32_t tile, raw &out) {
        const uint8_t *block = sparse_block<mr_block_iq4_xs>(row, tile);
        out[0] = gpu_read((const gpu_int2 *)block);
        out[1] = gpu_read((const gpu_int2 *)(block + 8 + tile % 8 * 16));
        out[2] = gpu_read((const gpu_int2 *)(block + 16 + tile % 8 * 16));
    }
    MR_INLINE gpu_tile unpack(const raw &in, int32_t tile) {
        gpu_tile t = {};
        const int w[4] = {in[1].x, in[1].y, in[2].x, in[2].y};
        int low = in[0].y >> tile % 8 * 4 & 15, high = (int)((uint32_t)in[0].x >> 16 >> tile % 8 * 2 & 3);
        t.d = gpu_half((uint16_t)in[0].x) * (float)((low | high << 4) - 32);
        gpu_look_up_nibbles(w, t.q, product_look_up_iq4);
        return t;
    }
};

/* d, dmin and the scales of Q4_K and Q5_K. */
MR_INLINE void sparse_k_scales(gpu_int4 head, int32_t tile, gpu_tile &t) {
    const int words[3] = {head.y, head.z, head.w};
    int j = tile % 8, at = j % 4 * 8, sc = words[0] >> at, m = words[1] >> at;
    if (j >= 4) {
        int more = words[2] >> at;
        sc = (more & 15) | (sc >> 6 & 3) << 4;
        m = (more >> 4 & 15) | (m >> 6 & 3) << 4;
    }
    t.d = gpu_half((uint16_t)head.x) * (float)(sc & 63);
    t.min = -(gpu_half((uint16_t)((uint32_t)head.x >> 16)) * (float)(m & 63));
}

struct sparse_q4_k : sparse_sum<0> {
    static constexpr product_rule RULE = PRODUCT_MIN;
    typedef gpu_int4 raw[3];
    MR_INLINE void read(const uint8_t *row, int32_t tile, raw &out) {
        const uint8_t *block = sparse_block<mr_block_q4_k>(row, tile);
        out[0] = gpu_read((const gpu_int4 *)block);
        out[1] = gpu_read((const gpu_int4 *)(block + 16 + tile % 8 / 2 * 32));
        out[2] = gpu_read((const gpu_int4 *)(block + 32 + tile % 8 / 2 * 32));
    }
    /* The nibbles of the tile in 32 bytes. */
    MR_INLINE void unpack_nibbles(const gpu_int4 in[2], int32_t tile, int q[8]) {
        product_words(in[0], q);
        product_words(in[1], q + 4);
        MR_UNROLL
        for (int j = 0; j < 8; j++)
            q[j] = q[j] >> tile % 2 * 4 & 0x0f0f0f0f;
    }
    MR_INLINE gpu_tile unpack(const raw &in, int32_t tile) {
        gpu_tile t = {};
        unpack_nibbles(in + 1, tile, t.q);
        sparse_k_scales(in[0], tile, t);
        return t;
    }
};

struct sparse_q5_k : sparse_sum<0> {
    static constexpr product_rule RULE = PRODUCT_MIN;
    typedef gpu_int4 raw[5];
    MR_INLINE void read(const uint8_t *row, int32_t tile, raw &out) {
        const uint8_t *block = sparse_block<mr_block_q5_k>(row, tile);
        MR_UNROLL
        for (int i = 0; i < 3; i++)
            out[i] = gpu_read((const gpu_int4 *)(block + 16 * i));
        out[3] = gpu_read((const gpu_int4 *)(block + 48 + tile % 8 / 2 * 32));
        out[4] = gpu_read((const gpu_int4 *)(block + 64 + tile % 8 / 2 * 32));
    }
    MR_INLINE gpu_tile unpack(const raw &in, int32_t tile) {
        gpu_tile t = {};
        int high[8];
        sparse_q4_k::unpack_nibbles(in + 3, tile, t.q);
        product_words(in[1], high);
        product_words(in[2], high + 4);
        MR_UNROLL
        for (int j = 0; j < 8; j++)
            t.q[j] |= (high[j] >> tile % 8 & 0x01010101) << 4;
        sparse_k_scales(in[0], tile, t);
        return t;
    }
};

struct sparse_q6_k {
    static constexpr product_rule RULE = PRODUCT_BLOCK;
    struct raw {
        uint16_t low[16], high[16], scales, d;
    };
    MR_INLINE void read(const uint8_t *row, int32_t tile, raw &out) {
        const uint8_t *block = sparse_block<mr_block_q6_k>(row, tile);
        int32_t j = tile % 8;
        gpu_read_halves<16>(block + j / 4 * 64 + j % 2 * 32, out.low);
        gpu_read_halves<16>(block + 128 + j / 4 * 32, out.high);
        gpu_read_halves<1>(block + 192 + 2 * j, &out.scales);
        gpu_read_halves<1>(block + 208, &out.d);
    }
    MR_INLINE gpu_tile unpack(const raw &in, int32_t tile) {
        gpu_tile t = {};
        int part = tile % 4;
        MR_UNROLL
        for (int j = 0; j < 8; j++) {
            int low = gpu_join_halves(in.low + 2 * j) >> part / 2 * 4 & 0x0f0f0f0f;
            int high = gpu_join_halves(in.high + 2 * j) >> 2 * part & 0x03030303;
            uint32_t q = (uint32_t)(low | high << 4) | 0x80808080u; /* no byte borrows from the next one */
            t.q[j] = (int)((q - 0x20202020u) ^ 0x80808080u);
        }
        t.d = gpu_half(in.d);
        t.scales[0] = (int8_t)in.scales;
        t.scales[1] = (int8_t)(in.scales >> 8);
        return t;
    }
    MR_INLINE int sum(const gpu_tile &t, const int halves[2], int) {
        return t.scales[0] * halves[0] + t.scales[1] * halves[1];
    }
};

#endif
