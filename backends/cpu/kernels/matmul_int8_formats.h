/* backends/cpu/kernels/matmul_int8_formats.h - how each kind of quantised panel is decoded, for every instruction set.
 * Weights are decoded to bytes: value + offset. Each level chooses the offsets that suit its product instructions, and
 * its products subtract them again (in integers: exact). Include this file after vec_avx512.h or the like, and after
 * the level's
 *   enum { OFFSET_BYTES, OFFSET_Q4_0, OFFSET_MXFP4, OFFSET_Q6_K, OFFSET_X8, OFFSET_X8M }
 * OFFSET_BYTES is the offset of Q8_0, IQ4_NL and IQ4_XS, whose values are within -128..127. Values of MXFP4 are within
 * -12..12, of X8 within -62..62, of X8M within 0..31. Q4_K (0..15) and Q5_K (0..31) have no offset. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_FORMATS_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_FORMATS_H

#include <stdbool.h>

#include "backends/cpu/kernels/matmul_panels.h"

/* How one format is decoded; always a constant. The functions get a block of a panel and the number of a sub-block of
 * 32 k in it. */
typedef struct format {
    int block_k, block_bytes;                              /* of a panel: 32 or 256 k */
    int n_sums;                                            /* integer sums for 32 k: 1, or 2 (one for each 16) */
    int n_mins;                                            /* 0, or one for each sum */
    int offset;                                            /* bytes are values plus this */
    int run;                                               /* sums that can be added in 16 bits: matmul_int8_avx2.h */
    bool is_signed;                                        /* bytes have both signs; read by the level AVX2 only */
    bool is_plain;                                         /* bytes are those of the panel: nothing to decode */
    v64 (*group)(const uint8_t *block, int sub, int g);    /* bytes of 16 rows: k 4g .. 4g + 3 */
    v16 (*scale)(const uint8_t *block, int sub, int half); /* of a sum; with factors, of the whole block */
    v16 (*min)(const uint8_t *block, int sub, int half);   /* is multiplied by the sum of the activations */
    /* Integer factors of a sum, one for each of 16 rows: the two sums of 32 k are multiplied by them and added, which
     * is exact in integers and in floats. NULL: there are none. */
    const int8_t *(*factors)(const uint8_t *block, int sub, int half);
} format;

/* `block` as a pointer to the panel type's block. */
#define BLOCK(type) ((const mr_panel_##type *)(const void *)block)

/* --- Bytes of value + 128: Q8_0, X8, X8M ------------------------------------------------------------------------- */

MR_ALWAYS_INLINE v64 q8_0_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return v64_minus(v64_load(BLOCK(q8_0)->q[g][0]), 128 - OFFSET_BYTES);
}
MR_ALWAYS_INLINE v16 q8_0_scale(const uint8_t *block, int sub, int half) {
    (void)sub, (void)half;
    return v16_load_f16(BLOCK(q8_0)->d);
}
MR_ALWAYS_INLINE v64 x8_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return v64_minus(v64_load(BLOCK(x8)->q[g][0]), 128 - OFFSET_X8);
}
MR_ALWAYS_INLINE v16 x8_scale(const uint8_t *block, int sub, int half) {
    (void)sub;
    return v16_load(BLOCK(x8)->scale[half]);
}
MR_ALWAYS_INLINE v64 x8m_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return v64_minus(v64_load(BLOCK(x8m)->q[g][0]), 128 - OFFSET_X8M);
}
MR_ALWAYS_INLINE v16 x8m_scale(const uint8_t *block, int sub, int half) {
    (void)sub;
    return v16_load(BLOCK(x8m)->scale[half]);
}
MR_ALWAYS_INLINE v16 x8m_min(const uint8_t *block, int sub, int half) {
    (void)sub;
    return v16_load(BLOCK(x8m)->min[half]);
}

/* --- Nibbles: Q4_0, IQ4_NL, MXFP4, IQ4_XS ------------------------------------------------------------------------ */

/* Group g of a sub-block of 32 k: 0..15. */
MR_ALWAYS_INLINE v64 nibbles(const uint8_t q[4][MR_PANEL][4], int g) {
    return v64_nibbles(v64_load(q[g % 4][0]), g >= 4);
}
MR_ALWAYS_INLINE v64 q4_0_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return v64_minus(nibbles(BLOCK(q4_0)->q, g), 8 - OFFSET_Q4_0);
}
MR_ALWAYS_INLINE v64 iq4_nl_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return v64_look_up(mr_iq4_values, OFFSET_BYTES, nibbles(BLOCK(q4_0)->q, g));
}
MR_ALWAYS_INLINE v16 q4_0_scale(const uint8_t *block, int sub, int half) {
    (void)sub, (void)half;
    return v16_load_f16(BLOCK(q4_0)->d);
}
MR_ALWAYS_INLINE v64 mxfp4_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return v64_look_up(mr_mxfp4_values, OFFSET_MXFP4, nibbles(BLOCK(mxfp4)->q, g));
}
MR_ALWAYS_INLINE v16 mxfp4_scale(const uint8_t *block, int sub, int half) {
    (void)sub, (void)half;
    return v16_load_power(BLOCK(mxfp4)->e);
}
MR_ALWAYS_INLINE v64 iq4_xs_group(const uint8_t *block, int sub, int g) {
    return v64_look_up(mr_iq4_values, OFFSET_BYTES, nibbles(BLOCK(iq4_xs)->q[sub], g));
}
MR_ALWAYS_INLINE v16 iq4_xs_scale(const uint8_t *block, int sub, int half) {
    (void)half;
    return v16_mul(v16_load_f16(BLOCK(iq4_xs)->d), v16_load_i8(BLOCK(iq4_xs)->sc[sub]));
}

/* --- Q4_K, Q5_K: a Q5_K block begins as a Q4_K block does, with its scales and low bits -------------------------- */

MR_ALWAYS_INLINE v64 q4_k_group(const uint8_t *block, int sub, int g) {
    return nibbles(BLOCK(q4_k)->q[sub], g);
}
MR_ALWAYS_INLINE v64 q5_k_group(const uint8_t *block, int sub, int g) {
    return v64_with_bit_4(q4_k_group(block, sub, g), v64_load(BLOCK(q5_k)->high[sub][0]), g);
}
MR_ALWAYS_INLINE v16 q4_k_scale(const uint8_t *block, int sub, int half) {
    (void)half;
    return v16_mul(v16_load_f16(BLOCK(q4_k)->d), v16_load_u8(BLOCK(q4_k)->scale[sub].sc));
}
MR_ALWAYS_INLINE v16 q4_k_min(const uint8_t *block, int sub, int half) {
    (void)half;
    return v16_neg(v16_mul(v16_load_f16(BLOCK(q4_k)->dmin), v16_load_u8(BLOCK(q4_k)->scale[sub].m)));
}

/* --- Q6_K: layout in matmul_panels.h ----------------------------------------------------------------------------- */

MR_ALWAYS_INLINE v64 q6_k_group(const uint8_t *block, int sub, int g) {
    const uint8_t(*q)[MR_PANEL][4] = BLOCK(q6_k)->q[sub * 2 + g / 4];
    v64 value = g % 4 < 3 ? v64_and(v64_load(q[g % 4][0]), 63)
                          : v64_top_bits(v64_load(q[0][0]), v64_load(q[1][0]), v64_load(q[2][0]));
    return v64_minus(value, 32 - OFFSET_Q6_K);
}
MR_ALWAYS_INLINE v16 q6_k_scale(const uint8_t *block, int sub, int half) {
    (void)sub, (void)half;
    return v16_load_f16(BLOCK(q6_k)->d);
}
MR_ALWAYS_INLINE const int8_t *q6_k_factors(const uint8_t *block, int sub, int half) {
    return BLOCK(q6_k)->sc[sub * 2 + half];
}

#undef BLOCK

/* --- The list ---------------------------------------------------------------------------------------------------- */

#define FORMAT(panel, k, sums, mins, plus, adds, values, scale_values)                                                 \
    .block_k = k, .block_bytes = sizeof(mr_panel_##panel), .n_sums = sums, .n_mins = mins, .offset = plus,             \
    .run = adds, .group = values##_group, .scale = scale_values##_scale
/* A format whose values may be any of -128..127. */
#define FULL(panel, k, values, scale_values)                                                                           \
    FORMAT(panel, k, 1, 0, OFFSET_BYTES, 1, values, scale_values), .is_signed = OFFSET_BYTES == 0
static const format Q8_0 = {FULL(q8_0, 32, q8_0, q8_0), .is_plain = OFFSET_BYTES == 128};
static const format X8 = {FORMAT(x8, 32, 2, 0, OFFSET_X8, 1, x8, x8), .is_plain = OFFSET_X8 == 128};
static const format X8M = {FORMAT(x8m, 32, 2, 2, OFFSET_X8M, 4, x8m, x8m), .min = x8m_min,
                           .is_plain = OFFSET_X8M == 128};
static const format Q4_0 = {FORMAT(q4_0, 32, 1, 0, OFFSET_Q4_0, 4, q4_0, q4_0)};
static const format IQ4_NL = {FULL(q4_0, 32, iq4_nl, q4_0)};
static const format MXFP4 = {FORMAT(mxfp4, 32, 1, 0, OFFSET_MXFP4, 4, mxfp4, mxfp4)};
static const format IQ4_XS = {FULL(iq4_xs, 256, iq4_xs, iq4_xs)};
static const format Q4_K = {FORMAT(q4_k, 256, 1, 1, 0, 4, q4_k, q4_k), .min = q4_k_min};
static const format Q5_K = {FORMAT(q5_k, 256, 1, 1, 0, 4, q5_k, q4_k), .min = q4_k_min};
static const format Q6_K = {FORMAT(q6_k, 256, 2, 0, OFFSET_Q6_K, 2, q6_k, q6_k), .factors = q6_k_factors};
#undef FORMAT
#undef FULL

#endif
