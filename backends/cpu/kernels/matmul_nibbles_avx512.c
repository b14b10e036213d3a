/* backends/cpu/kernels/matmul_nibbles_avx512.c - rule M for Q4_0, IQ4_NL, MXFP4 and IQ4_XS panels. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_int8_avx512.h"

/* Group g of a sub-block of 32 k: 0..15. */
MR_INLINE __m512i nibbles(const uint8_t q[4][MR_PANEL][4], int g) {
    __m512i both = _mm512_loadu_si512(q[g % 4]);
    return _mm512_and_si512(g < 4 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
}

/* The values that nibbles stand for, plus `offset`. */
MR_INLINE __m512i look_up(const int8_t values[16], int offset, __m512i indices) {
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)values));
    return _mm512_shuffle_epi8(_mm512_add_epi8(table, _mm512_set1_epi8((char)offset)), indices);
}

/* --- Q4_0 and IQ4_NL --------------------------------------------------------------------------------------------- */

MR_INLINE const mr_panel_q4_0 *q4_0(const uint8_t *block) {
    return (const mr_panel_q4_0 *)(const void *)block;
}
MR_INLINE __m512i q4_0_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return nibbles(q4_0(block)->q, g);
}
MR_INLINE __m512 q4_0_scale(const uint8_t *block, int sub, int half) {
    (void)sub, (void)half;
    return load_f16(q4_0(block)->d);
}
MR_INLINE __m512i iq4_nl_group(const uint8_t *block, int sub, int g) {
    return look_up(mr_iq4_values, 128, q4_0_group(block, sub, g));
}

static const format Q4_0 = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_q4_0),
    .n_scales = 1,
    .log_offset = 3,
    .group = q4_0_group,
    .scale = q4_0_scale,
};
static const format IQ4_NL = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_q4_0),
    .n_scales = 1,
    .log_offset = 7,
    .group = iq4_nl_group,
    .scale = q4_0_scale,
};

/* --- MXFP4 ------------------------------------------------------------------------------------------------------- */

MR_INLINE const mr_panel_mxfp4 *mxfp4(const uint8_t *block) {
    return (const mr_panel_mxfp4 *)(const void *)block;
}
MR_INLINE __m512i mxfp4_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return look_up(mr_mxfp4_values, 16, nibbles(mxfp4(block)->q, g));
}
/* 2^(e - 128), or 0 where that is no normal number. */
MR_INLINE __m512 mxfp4_scale(const uint8_t *block, int sub, int half) {
    (void)sub, (void)half;
    __m512i e =
        _mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)mxfp4(block)->e)), _mm512_set1_epi32(1));
    __mmask16 normal = _mm512_cmpgt_epi32_mask(e, _mm512_setzero_si512());
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(normal, e, 23));
}

static const format MXFP4 = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_mxfp4),
    .n_scales = 1,
    .log_offset = 4,
    .group = mxfp4_group,
    .scale = mxfp4_scale,
};

/* --- IQ4_XS ------------------------------------------------------------------------------------------------------ */

MR_INLINE const mr_panel_iq4_xs *iq4_xs(const uint8_t *block) {
    return (const mr_panel_iq4_xs *)(const void *)block;
}
MR_INLINE __m512i iq4_xs_group(const uint8_t *block, int sub, int g) {
    return look_up(mr_iq4_values, 128, nibbles(iq4_xs(block)->q[sub], g));
}
MR_INLINE __m512 iq4_xs_scale(const uint8_t *block, int sub, int half) {
    (void)half;
    return _mm512_mul_ps(load_f16(iq4_xs(block)->d), load_i8(iq4_xs(block)->sc[sub]));
}

static const format IQ4_XS = {
    .block_k = 256,
    .block_bytes = sizeof(mr_panel_iq4_xs),
    .n_scales = 1,
    .log_offset = 7,
    .group = iq4_xs_group,
    .scale = iq4_xs_scale,
};

MATMUL_KERNEL(matmul_q4_0_avx512, Q4_0)
MATMUL_KERNEL(matmul_iq4_nl_avx512, IQ4_NL)
MATMUL_KERNEL(matmul_mxfp4_avx512, MXFP4)
MATMUL_KERNEL(matmul_iq4_xs_avx512, IQ4_XS)
