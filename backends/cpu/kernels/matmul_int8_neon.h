/* backends/cpu/kernels/matmul_int8_neon.h - rule M for quantised weights on AArch64, for every panel format.
 * A tile is one panel by up to 4 rows: 16 registers of integer sums, one lane for each output row. Bytes are decoded to
 * signed values, so there is no offset to subtract. For one row, 32 k take 32 SDOT, and 12 instructions for the scale.
 *
 * With the dot product instructions (__ARM_FEATURE_DOTPROD), SDOT adds four products to a 32-bit sum. Without them,
 * SMULL makes 16-bit products. Values are within -128..127 and activations within -127..127 (rule Q), so two products
 * can be added in 16 bits (32512 at most) before they are widened: exact.
 *
 * Not done: SMMLA (i8mm) multiplies two rows of weights by two of activations, 8 k at once, with half the instructions
 * of SDOT. But its sums mix two activation rows. So pairs of groups would have to be interleaved when they are decoded,
 * and sums separated for every scale. By count, 44 instructions for a row and 32 k would become 32, and for prompts
 * only. There is no such machine to measure it on.
 * Include it once for each level. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_NEON_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_NEON_H

#include "backends/cpu/kernels/vec_neon.h"

enum {
    TILE_PANELS = 1,
    TILE_ROWS = 4,
    CHUNK = 512,
    STEP = 32,
};
enum { OFFSET_BYTES = 0, OFFSET_Q4_0 = 0, OFFSET_MXFP4 = 0, OFFSET_Q6_K = 0, OFFSET_X8 = 0, OFFSET_X8M = 0 };

#include "backends/cpu/kernels/matmul_int8_tiles.h"

struct row_chunk {
    _Alignas(LINE) int8_t q[CHUNK];
    float d[SUBS];
    float d_sum[HALVES]; /* d times the sum of each 32 activations, or of each 16 with two scales */
};

MR_ALWAYS_INLINE void lay_out_row(const format f, const mr_matmul_args *args, int32_t row, int32_t k, int32_t n_k,
                                  row_chunk *out) {
    const int32_t n_subs = n_k / 32;
    a8_row a = a8_row_at(matmul_a_row(args, row), args->k);
    memcpy(out->q, a.q + k, (size_t)n_k);
    memcpy(out->d, a.d + k / 32, (size_t)n_subs * sizeof *out->d);
    for (int32_t j = 0; f.n_mins == 1 && j < n_subs; j++)
        out->d_sum[j] = out->d[j] * (float)a.sum[k / 32 + j];
    for (int32_t i = 0; f.n_mins == 2 && i < 2 * n_subs; i++)
        out->d_sum[i] = out->d[i / 2] * (float)vaddlvq_s8(vld1q_s8(out->q + 16 * i));
}

/* --- Weights ----------------------------------------------------------------------------------------------------- */

/* Decodes the weights of a chunk and keeps them for all of its tiles. */
MR_ALWAYS_INLINE void decode(const format f, const tile *t) {
    for (int32_t j = 0; j < t->n_k / 32; j++) {
        UNROLL
        for (int h = 0; h < f.n_sums; h++)
            (void)(f.factors ? factor_of : scale_of)(f, t, PANELS_TO_KEEP, 0, j, h);
        if (f.factors && sub_of(f, j) == 0)
            (void)scale_of(f, t, PANELS_TO_KEEP, 0, j, 0);
        UNROLL
        for (int h = 0; h < f.n_mins; h++)
            (void)min_of(f, t, PANELS_TO_KEEP, 0, j, h);
        UNROLL
        for (int g = 0; g < 8; g++)
            (void)group_of(f, t, PANELS_TO_KEEP, 0, j, g);
    }
}

/* --- Tiles ------------------------------------------------------------------------------------------------------- */

/* sum += in each lane, the four values of w times activations 4i .. 4i + 3 of x. The intrinsics need a constant i,
 * hence the switch; unrolled loops make the switch disappear. */
MR_ALWAYS_INLINE int32x4_t dot_4(int32x4_t sum, uint8x16_t bytes, int8x16_t x, int i) {
    int8x16_t w = vreinterpretq_s8_u8(bytes);
#if defined(__ARM_FEATURE_DOTPROD)
    switch (i) {
    case 0:
        return vdotq_laneq_s32(sum, w, x, 0);
    case 1:
        return vdotq_laneq_s32(sum, w, x, 1);
    case 2:
        return vdotq_laneq_s32(sum, w, x, 2);
    default:
        return vdotq_laneq_s32(sum, w, x, 3);
    }
#else
    int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(vreinterpretq_s32_s8(x)[i]));
    int16x8_t lo = vmull_s8(vget_low_s8(w), vget_low_s8(four)), hi = vmull_high_s8(w, four);
    return vpadalq_s16(sum, vpaddq_s16(lo, hi));
#endif
}

MR_ALWAYS_INLINE v16i dot_16(v16i sum, v64 w, int8x16_t x, int i) {
    return (v16i){dot_4(sum.q0, w.q0, x, i), dot_4(sum.q1, w.q1, x, i), dot_4(sum.q2, w.q2, x, i),
                  dot_4(sum.q3, w.q3, x, i)};
}

/* acc = fma(minimum, d times the sum of the activations, acc) */
MR_ALWAYS_INLINE void add_minima(const format f, const tile *t, weight_source from, int n_rows, int32_t j, int h,
                                 v16 acc[TILE_ROWS]) {
    v16 min = min_of(f, t, from, 0, j, h);
    UNROLL
    for (int r = 0; r < n_rows; r++)
        acc[r] = v16_fma(min, v16_set1(t->rows[r].d_sum[j * f.n_mins + h]), acc[r]);
}

/* Adds the products of 16 k: half `half` of sub-block j. */
MR_ALWAYS_INLINE void add_half(const format f, const tile *t, weight_source from, int n_rows, int32_t j, int half,
                               v16i sum[TILE_ROWS]) {
    int8x16_t x[TILE_ROWS];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        x[r] = vld1q_s8(t->rows[r].q + j * 32 + half * 16);
    UNROLL
    for (int i = 0; i < 4; i++) {
        v64 w = group_of(f, t, from, 0, j, half * 4 + i);
        UNROLL
        for (int r = 0; r < n_rows; r++)
            sum[r] = dot_16(sum[r], w, x[r], i);
    }
}

/* Adds the products of the k that share one scale: half h of sub-block j, or all of it. */
MR_ALWAYS_INLINE void add_products(const format f, const tile *t, weight_source from, int n_rows, int32_t j, int h,
                                   v16 acc[TILE_ROWS]) {
    v16i sum[TILE_ROWS];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        sum[r] = v16_bits(v16_set1(0.0f));
    UNROLL
    for (int half = h; half < h + 2 / f.n_sums; half++)
        add_half(f, t, from, n_rows, j, half, sum);
    v16 scale = scale_of(f, t, from, 0, j, h);
    UNROLL
    for (int r = 0; r < n_rows; r++)
        acc[r] = v16_fma(v16_from_i32(sum[r]), v16_mul(scale, v16_set1(t->rows[r].d[j])), acc[r]);
    if (f.n_mins == 2)
        add_minima(f, t, from, n_rows, j, h, acc);
}

/* Adds the products of sub-block j, whose two sums have factors, to acc, without the scale of the block. */
MR_ALWAYS_INLINE void add_factor_products(const format f, const tile *t, weight_source from, int n_rows, int32_t j,
                                          v16 acc[TILE_ROWS]) {
    v16 x[TILE_ROWS];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        x[r] = v16_set1(0.0f);
    UNROLL
    for (int h = 0; h < 2; h++) {
        v16i sum[TILE_ROWS];
        UNROLL
        for (int r = 0; r < n_rows; r++)
            sum[r] = v16_bits(v16_set1(0.0f));
        add_half(f, t, from, n_rows, j, h, sum);
        v16 factor = factor_of(f, t, from, 0, j, h);
        UNROLL
        for (int r = 0; r < n_rows; r++)
            x[r] = v16_fma(v16_from_i32(sum[r]), factor, x[r]);
    }
    UNROLL
    for (int r = 0; r < n_rows; r++)
        acc[r] = v16_fma(x[r], v16_set1(t->rows[r].d[j]), acc[r]);
}

/* run_tile for a format with factors. */
MR_ALWAYS_INLINE void run_factor_tile(const format f, const tile *t, weight_source from, int n_rows) {
    for (int32_t block = 0; block < t->n_k / 32; block += f.block_k / 32) {
        v16 acc[TILE_ROWS];
        UNROLL
        for (int r = 0; r < n_rows; r++)
            acc[r] = v16_set1(0.0f);
        for (int32_t j = block; j < block + f.block_k / 32; j++) {
            ask_ahead(t, j);
            add_factor_products(f, t, from, n_rows, j, acc);
        }
        v16 scale = scale_of(f, t, from, 0, block, 0);
        UNROLL
        for (int r = 0; r < n_rows; r++)
            v16_store(t->sums[r][0], v16_fma(acc[r], scale, v16_load(t->sums[r][0])));
    }
}

/* Continues the sums of n_rows rows and a panel over the chunk. from and n_rows are constants. */
MR_ALWAYS_INLINE void run_tile(const format f, const tile *t, weight_source from, int n_rows) {
    if (f.factors) {
        run_factor_tile(f, t, from, n_rows);
        return;
    }
    v16 acc[TILE_ROWS];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        acc[r] = v16_load(t->sums[r][0]);
    for (int32_t j = 0; j < t->n_k / 32; j++) {
        ask_ahead(t, j);
        UNROLL
        for (int h = 0; h < f.n_sums; h++)
            add_products(f, t, from, n_rows, j, h, acc);
        if (f.n_mins == 1)
            add_minima(f, t, from, n_rows, j, 0, acc);
    }
    UNROLL
    for (int r = 0; r < n_rows; r++)
        v16_store(t->sums[r][0], acc[r]);
}

MR_ALWAYS_INLINE int32_t tile_rows(const format f) {
    (void)f;
    return TILE_ROWS;
}

MR_ALWAYS_INLINE void run_rows(const format f, const tile *t, weight_source from, int32_t n_rows) {
    if (n_rows == 4)
        run_tile(f, t, from, 4);
    else if (n_rows == 3)
        run_tile(f, t, from, 3);
    else if (n_rows == 2)
        run_tile(f, t, from, 2);
    else
        run_tile(f, t, from, 1);
}

/* Decoded formats without factors differ only in their numbers of sums and minima. Formats with the same numbers share
 * this code. */
#define DECODED(n_sums, n_mins)                                                                                        \
    static void run_decoded_##n_sums##_##n_mins(const tile *t, int32_t n_rows) {                                       \
        static const format f = {0, 0, n_sums, n_mins, 0, 0, false, false, NULL, NULL, NULL, NULL};                    \
        run_rows(f, t, KEPT, n_rows);                                                                                  \
    }
DECODED(1, 0)
DECODED(1, 1)
DECODED(2, 0)
DECODED(2, 2)

MR_ALWAYS_INLINE void run_tile_of(const format f, const tile *t, weight_source from, int32_t n_rows) {
    if (from == PANELS) {
        run_rows(f, t, PANELS, n_rows);
        return;
    }
    if (from == PANELS_TO_KEEP)
        decode(f, t);
    if (f.factors)
        run_rows(f, t, KEPT, n_rows);
    else if (f.n_sums == 1)
        (f.n_mins ? run_decoded_1_1 : run_decoded_1_0)(t, n_rows);
    else
        (f.n_mins ? run_decoded_2_2 : run_decoded_2_0)(t, n_rows);
}

#include "backends/cpu/kernels/matmul_loops.h"

#endif
