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
/* d of word i of a step, for types with a d for each tile. */
template <class T> MR_INLINE uint32_t repack_d(const repack_rows &p, int32_t step, int i) {
    int32_t tile = step + i % 4;
    int g = i / 4;
    return tile < p.n_tiles ? repack_halves(repack_block<T>(p, g, tile).d, repack_block<T>(p, g + 8, tile).d) : 0;
}

/* --- The types ---------------------------------------------------------------------------------------------------- */
/* quants: word w of a lane, of the unit that begins with this tile. scales: word i of the step that begins with it. */

struct repack_q8_0 {
    typedef mr_block_q8_0 block;
    enum { TILES = 1, UNIT = PANEL_Q8_0_UNIT, STEP = PANEL_Q8_0_STEP };
    enum { UNIT_BYTES = PANEL_Q8_0_UNIT_BYTES, STEP_BYTES = PANEL_Q8_0_STEP_BYTES };
    MR_INLINE uint32_t code(const block &b, int k) { return (uint8_t)b.q[k]; }
    MR_INLINE uint32_t quants(const repack_rows &p, int32_t unit, int lane, int w) {
        uint32_t word = 0;
        for (int i = 0; i < 4; i++)
            word |= repack_code<repack_q8_0>(p, repack_row(lane, w), unit, repack_k(lane, w) + i) << 8 * i;
        return word;
    }
    MR_INLINE uint32_t scales(const repack_rows &p, int32_t step, int i) { return repack_d<repack_q8_0>(p, step, i); }
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
