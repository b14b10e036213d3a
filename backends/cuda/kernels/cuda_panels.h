/* backends/cuda/kernels/cuda_panels.h - the layout of quantised matrices in the device's memory.
 * A panel has 16 rows of the matrix (output rows). Panels lie one behind the other, each aligned to 128 bytes; in the
 * last panel, the last row stands in place of rows past the end. A tile is 32 k of a panel. A panel consists of the
 * quants of all tiles and, behind them, the scales of all tiles, so that both are read in order.
 *
 * Quants. A lane l = 4g + t of a warp needs four registers of a tile, a[0] to a[3], for gpu_mma_s8. Register j has
 * row g + 8 (j % 2) and four k: 8t + 4 (j / 2) and the three behind. (Any order of k in a tile is right, if the
 * activations have the same, because integer sums are exact. In this order a lane's activations are 8 bytes side by
 * side.)
 * The quants of a unit of tiles are words of 4 bytes. Word w of lane l lies at 512 (w / 4) + 16 l + 4 (w % 4), so that
 * a warp reads 512 bytes at once, 16 for each lane. Tile i of a unit has
 *   Q8_0    words 0..3: the registers
 *   Q4_0    words 2i, 2i + 1: register 2h in the low nibbles of word 2i + h, register 2h + 1 in the high ones; values
 *           in two's complement
 *   Q4_K    the same, with values 0..15
 *   Q5_K    the same, with bits 0-3 of the values; bit 4 of register j is bit 4 (i % 2) + j of the bytes of word
 *           16 + i / 2
 *   IQ4_NL, IQ4_XS, MXFP4
 *           words 2i, 2i + 1: register 2h in nibbles 0..3 of word 2i + h, register 2h + 1 in nibbles 4..7: indices
 *   Q6_K    words 3i to 3i + 2: register c in bits 2-7 of the bytes of word 3i + c, as values + 32; of register 3,
 *           bits 5-4, 3-2 and 1-0 are in bits 0-1 of the three words
 * Words of tiles behind the last one are 0.
 *
 * Scales. A step of tiles has, for g = 0..7 and with r = 0, 1 for row g + 8r
 *   Q8_0, Q4_0, IQ4_NL
 *           at 16 g + 4 i + 2 r: f16 d of tile i (0..3)
 *   MXFP4   at 8 g + 2 i + r: u8 exponent of the scale of tile i (0..3) as in an f32: e - 1, or 0 where e < 2
 *   IQ4_XS  at 4 g + 2 r: f16 d; at 32 + 16 g + 2 i + r: u8 sc + 128 of tile i (0..7)
 *   Q4_K, Q5_K
 *           at 8 g + 2 r: f16 d; at 8 g + 4 + 2 r: f16 dmin; at 64 + 128 (i / 4) + 16 g + 4 (i % 4) + r: u8 sc of tile
 *           i (0..7), 2 behind: u8 m
 *   Q6_K    at 4 g + 2 r: f16 d; at 32 + 128 (i / 4) + 16 g + 8 h + 2 (i % 4) + r: i8 sc of half h of tile i
 * Scales of tiles behind the last one are 0. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_PANELS_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_PANELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include "backends/cuda/kernels/gpu.h"
#else
#include "engine/base/inline.h"
#endif

enum {
    CUDA_PANEL_ALIGNMENT = 128,
    CUDA_TILE = 32,
    CUDA_REPACK_PANEL_THREADS = 256,
    /* Products of few rows: a block has a panel for each of so many warps, or so many warps for one panel. */
    CUDA_SMALL_PANELS = 4,
    CUDA_SMALL_WARPS = 8,
};

#ifdef __cplusplus
/* panel_q8_0 and so on: the numbers of cuda_panels.def. READS: reads of 16 bytes of a lane for the quants of a step. */
#define PANEL(name, TYPE, unit, unit_bytes, step, step_bytes)                                                          \
    struct panel_##name {                                                                                              \
        enum {                                                                                                         \
            UNIT = unit,                                                                                               \
            UNIT_BYTES = unit_bytes,                                                                                   \
            STEP = step,                                                                                               \
            STEP_BYTES = step_bytes,                                                                                   \
            READS = step / unit * unit_bytes / 512,                                                                    \
        };                                                                                                             \
    };
#include "backends/cuda/kernels/cuda_panels.def"
#undef PANEL
#endif

/* Bytes of n_tiles tiles, if each n tiles have so many bytes; the last ones are whole. */
MR_INLINE size_t cuda_tile_bytes(int32_t n_tiles, int32_t n, int32_t bytes) {
    return (size_t)((n_tiles + n - 1) / n) * (size_t)bytes;
}

/* Bytes of a panel of k columns. */
MR_INLINE size_t cuda_panel_bytes(int32_t k, int32_t unit, int32_t unit_bytes, int32_t step, int32_t step_bytes) {
    size_t n = cuda_tile_bytes(k / CUDA_TILE, unit, unit_bytes) + cuda_tile_bytes(k / CUDA_TILE, step, step_bytes);
    return (n + CUDA_PANEL_ALIGNMENT - 1) / CUDA_PANEL_ALIGNMENT * CUDA_PANEL_ALIGNMENT;
}

/* Repacks a matrix. A thread writes 4 bytes; gpu_block is the panel, gpu_block_y a part of it. */
typedef struct cuda_repack_panel_args {
    const uint8_t *src; /* rows as they lie in the file */
    uint8_t *dst;
    uint64_t row_bytes; /* of src */
    uint64_t panel_bytes;
    int32_t k, n; /* columns and rows of the matrix */
} cuda_repack_panel_args;

#endif
