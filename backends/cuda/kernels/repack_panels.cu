/* backends/cuda/kernels/repack_panels.cu - writes quantised matrices in the layout of cuda_panels.h. Each thread finds
 * the values of 4 bytes of a panel in the rows of the file. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_panels.h"
#include "backends/cuda/kernels/gpu.h"
#include "engine/tensor/quant.h"

/* The rows of a panel. */
struct repack_rows {
    const uint8_t *src;
    uint64_t row_bytes;
    int32_t first, n, n_tiles;
};

/* The file's block that holds a tile. Behind the last row: of the last row. */
template <class T> MR_INLINE const typename T::block &repack_block(const repack_rows &p, int row, int32_t tile) {
    int32_t r = p.first + row < p.n ? p.first + row : p.n - 1;
    return ((const typename T::block *)(p.src + (size_t)r * p.row_bytes))[tile / T::TILES];
}

/* What is stored for element k of a tile. */
template <class T> MR_INLINE uint32_t repack_code(const repack_rows &p, int row, int32_t tile, int k) {
    return tile < p.n_tiles ? T::code(repack_block<T>(p, row, tile), tile % T::TILES * 32 + k) : 0;
}

/* The row and the first k of register j of a lane. */
MR_INLINE int repack_row(int lane, int j) {
    return lane / 4 + 8 * (j % 2);
}
MR_INLINE int repack_k(int lane, int j) {
    return lane % 4 * 8 + 4 * (j / 2);
}

/* Register 2h in the low nibbles of a word, and register 2h + 1 in the high ones. */
template <class T> MR_INLINE uint32_t repack_low_high(const repack_rows &p, int32_t tile, int lane, int h) {
    uint32_t word = 0;
    for (int i = 0; i < 8; i++)
        word |= (repack_code<T>(p, repack_row(lane, i % 2), tile, repack_k(lane, 2 * h) + i / 2) & 15) << 4 * i;
    return word;
}
/* Register 2h in nibbles 0 to 3 of a word, and register 2h + 1 in nibbles 4 to 7. */
template <class T> MR_INLINE uint32_t repack_one_by_one(const repack_rows &p, int32_t tile, int lane, int h) {
    uint32_t word = 0;
    for (int i = 0; i < 8; i++)
        word |= repack_code<T>(p, repack_row(lane, i / 4), tile, repack_k(lane, 2 * h) + i % 4) << 4 * i;
    return word;
}

/* f16 of rows g and g + 8. */
MR_INLINE uint32_t repack_halves(uint16_t low, uint16_t high) {
    return (uint32_t)low | (uint32_t)high << 16;
}
/* Nibble k of 32 in 16 bytes. */
MR_INLINE uint32_t repack_nibble(const uint8_t *q, int k) {
    return q[k % 16] >> k / 16 * 4 & 15;
}
template <class T> MR_INLINE uint32_t repack_d_of_block(const repack_rows &p, int32_t tile, int g) {
    return repack_halves(repack_block<T>(p, g, tile).d, repack_block<T>(p, g + 8, tile).d);
}
/* d of word i of a step, for types with a d for each tile. */
template <class T> MR_INLINE uint32_t repack_d(const repack_rows &p, int32_t step, int i) {
    int32_t tile = step + i % 4;
    return tile < p.n_tiles ? repack_d_of_block<T>(p, tile, i / 4) : 0;
}

/* --- The types ---------------------------------------------------------------------------------------------------- */
/* quants: word w of a lane, of the unit that begins with this tile. scales: word i of the step that begins with it. */

struct repack_q8_0 : panel_q8_0 {
    typedef mr_block_q8_0 block;
    enum { TILES = 1 };
    MR_INLINE uint32_t code(const block &b, int k) { return (uint8_t)b.q[k]; }
    MR_INLINE uint32_t quants(const repack_rows &p, int32_t unit, int lane, int w) {
        uint32_t word = 0;
        for (int i = 0; i < 4; i++)
            word |= repack_code<repack_q8_0>(p, repack_row(lane, w), unit, repack_k(lane, w) + i) << 8 * i;
        return word;
    }
    MR_INLINE uint32_t scales(const repack_rows &p, int32_t step, int i) { return repack_d<repack_q8_0>(p, step, i); }
};

struct repack_q4_0 : panel_q4_0 {
    typedef mr_block_q4_0 block;
    enum { TILES = 1 };
    MR_INLINE uint32_t code(const block &b, int k) { return repack_nibble(b.q, k) ^ 8; }
    MR_INLINE uint32_t quants(const repack_rows &p, int32_t unit, int lane, int w) {
        return repack_low_high<repack_q4_0>(p, unit + w / 2, lane, w % 2);
    }
    MR_INLINE uint32_t scales(const repack_rows &p, int32_t step, int i) { return repack_d<repack_q4_0>(p, step, i); }
};

struct repack_iq4_nl : panel_iq4_nl {
    typedef mr_block_q4_0 block;
    enum { TILES = 1 };
    MR_INLINE uint32_t code(const block &b, int k) { return repack_nibble(b.q, k); }
    MR_INLINE uint32_t quants(const repack_rows &p, int32_t unit, int lane, int w) {
        return repack_one_by_one<repack_iq4_nl>(p, unit + w / 2, lane, w % 2);
    }
    MR_INLINE uint32_t scales(const repack_rows &p, int32_t step, int i) { return repack_d<repack_iq4_nl>(p, step, i); }
};

struct repack_mxfp4 : panel_mxfp4 {
    typedef mr_block_mxfp4 block;
    enum { TILES = 1 };
    MR_INLINE uint32_t code(const block &b, int k) { return repack_nibble(b.q, k); }
    MR_INLINE uint32_t quants(const repack_rows &p, int32_t unit, int lane, int w) {
        return repack_one_by_one<repack_mxfp4>(p, unit + w / 2, lane, w % 2);
    }
    MR_INLINE uint32_t scales(const repack_rows &p, int32_t step, int i) {
        uint32_t word = 0;
        for (int b = 0; b < 4; b++) {
            int32_t tile = step + i % 2 * 2 + b / 2;
            if (tile < p.n_tiles)
                word |= mr_f32_bits(mr_mxfp4_scale(repack_block<repack_mxfp4>(p, i / 2 + b % 2 * 8, tile).e)) >>
                        23 << 8 * b;
        }
        return word;
    }
};

struct repack_iq4_xs : panel_iq4_xs {
    typedef mr_block_iq4_xs block;
    enum { TILES = 8, D_WORDS = 8 };
    MR_INLINE uint32_t code(const block &b, int k) { return repack_nibble(b.q + k / 32 * 16, k % 32); }
    MR_INLINE uint32_t quants(const repack_rows &p, int32_t unit, int lane, int w) {
        return repack_one_by_one<repack_iq4_xs>(p, unit + w / 2, lane, w % 2);
    }
    MR_INLINE uint32_t scales(const repack_rows &p, int32_t step, int i) {
        if (i < D_WORDS)
            return repack_d_of_block<repack_iq4_xs>(p, step, i);
        uint32_t word = 0;
        i -= D_WORDS;
        for (int b = 0; b < 4; b++) {
            const block &of = repack_block<repack_iq4_xs>(p, i / 4 + b % 2 * 8, step);
            word |= (uint32_t)(mr_iq4_xs_scale(&of, i % 4 * 2 + b / 2) + 128) << 8 * b;
        }
        return word;
    }
};

/* Scales of Q4_K and Q5_K. */
template <class T> MR_INLINE uint32_t repack_scales_k4(const repack_rows &p, int32_t step, int i) {
    enum { D_WORDS = 16 };
    if (i < D_WORDS && i % 2 == 0)
        return repack_d_of_block<T>(p, step, i / 2);
    if (i < D_WORDS)
        return repack_halves(repack_block<T>(p, i / 2, step).dmin, repack_block<T>(p, i / 2 + 8, step).dmin);
    uint32_t word = 0;
    i -= D_WORDS;
    for (int r = 0; r < 2; r++) {
        uint8_t sc, m;
        mr_q4_k_scale(repack_block<T>(p, i % 32 / 4 + 8 * r, step).scales, i / 32 * 4 + i % 4, &sc, &m);
        word |= (uint32_t)sc << 8 * r | (uint32_t)m << (16 + 8 * r);
    }
    return word;
}

struct repack_q4_k : panel_q4_k {
    typedef mr_block_q4_k block;
    enum { TILES = 8 };
    MR_INLINE uint32_t code(const block &b, int k) { return mr_q4_k_value(&b, k); }
    MR_INLINE uint32_t quants(const repack_rows &p, int32_t unit, int lane, int w) {
        return repack_low_high<repack_q4_k>(p, unit + w / 2, lane, w % 2);
    }
    MR_INLINE uint32_t scales(const repack_rows &p, int32_t step, int i) {
        return repack_scales_k4<repack_q4_k>(p, step, i);
    }
};

struct repack_q5_k : panel_q5_k {
    typedef mr_block_q5_k block;
    enum { TILES = 8, LOW_WORDS = 16 };
    MR_INLINE uint32_t code(const block &b, int k) {
        return (b.q[k / 64 * 32 + k % 32] >> k / 32 % 2 * 4 & 15) | (b.high[k % 32] >> k / 32 & 1) << 4;
    }
    MR_INLINE uint32_t quants(const repack_rows &p, int32_t unit, int lane, int w) {
        if (w < LOW_WORDS)
            return repack_low_high<repack_q5_k>(p, unit + w / 2, lane, w % 2);
        uint32_t word = 0;
        for (int i = 0; i < 32; i++) { /* byte i / 8, bit i % 8 */
            int32_t tile = unit + 2 * (w - LOW_WORDS) + i % 8 / 4;
            int j = i % 4;
            word |= repack_code<repack_q5_k>(p, repack_row(lane, j), tile, repack_k(lane, j) + i / 8) >> 4 << i;
        }
        return word;
    }
    MR_INLINE uint32_t scales(const repack_rows &p, int32_t step, int i) {
        return repack_scales_k4<repack_q5_k>(p, step, i);
    }
};

struct repack_q6_k : panel_q6_k {
    typedef mr_block_q6_k block;
    enum { TILES = 8, D_WORDS = 8 };
    MR_INLINE uint32_t code(const block &b, int k) { return (uint32_t)mr_q6_k_value(&b, k); }
    MR_INLINE uint32_t quants(const repack_rows &p, int32_t unit, int lane, int w) {
        uint32_t word = 0;
        int32_t tile = unit + w / 3;
        int c = w % 3;
        for (int i = 0; i < 4; i++) {
            uint32_t own = repack_code<repack_q6_k>(p, repack_row(lane, c), tile, repack_k(lane, c) + i),
                     last = repack_code<repack_q6_k>(p, repack_row(lane, 3), tile, repack_k(lane, 3) + i);
            word |= (own << 2 | (last >> (4 - 2 * c) & 3)) << 8 * i;
        }
        return word;
    }
    MR_INLINE uint32_t scales(const repack_rows &p, int32_t step, int i) {
        if (i < D_WORDS)
            return repack_d_of_block<repack_q6_k>(p, step, i);
        uint32_t word = 0;
        i -= D_WORDS;
        for (int b = 0; b < 4; b++) {
            const block &of = repack_block<repack_q6_k>(p, i % 32 / 4 + b % 2 * 8, step);
            int tile = i / 32 * 4 + i % 2 * 2 + b / 2, half = i % 4 / 2;
            word |= (uint32_t)(uint8_t)of.sc[2 * tile + half] << 8 * b;
        }
        return word;
    }
};

/* --- Panels ------------------------------------------------------------------------------------------------------- */

template <class T> MR_INLINE void repack_panel(const cuda_repack_panel_args &a) {
    enum { LANES = 32, READ = 4 * LANES, UNIT_WORDS = T::UNIT_BYTES / 4, STEP_WORDS = T::STEP_BYTES / 4 };
    uint64_t word = (uint64_t)gpu_block_y() * CUDA_REPACK_PANEL_THREADS + gpu_thread();
    if (word >= a.panel_bytes / 4)
        return;
    int32_t panel = (int32_t)gpu_block(), n_tiles = a.k / CUDA_TILE;
    repack_rows p = {a.src, a.row_bytes, 16 * panel, a.n, n_tiles};
    uint32_t out = 0, n_quants = (uint32_t)(cuda_tile_bytes(n_tiles, T::UNIT, T::UNIT_BYTES) / 4), i = (uint32_t)word;
    if (i < n_quants) {
        int in = (int)(i % UNIT_WORDS);
        out = T::quants(p, (int32_t)(i / UNIT_WORDS) * T::UNIT, in % READ / 4, in / READ * 4 + in % 4);
    } else if ((int32_t)((i - n_quants) / STEP_WORDS) * T::STEP < n_tiles) { /* else behind the last step */
        i -= n_quants;
        out = T::scales(p, (int32_t)(i / STEP_WORDS) * T::STEP, (int)(i % STEP_WORDS));
    }
    ((uint32_t *)(a.dst + (size_t)panel * a.panel_bytes))[word] = out;
}

#define PANEL(name, TYPE, ...)                                                                                         \
    MR_KERNEL(cuda_repack_##name, cuda_repack_panel_args, CUDA_REPACK_PANEL_THREADS) {                                 \
        repack_panel<repack_##name>(a);                                                                                \
    }
#include "backends/cuda/kernels/cuda_panels.def"
