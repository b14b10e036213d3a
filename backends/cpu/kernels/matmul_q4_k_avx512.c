/* backends/cpu/kernels/matmul_q4_k_avx512.c - rule M for Q4_K and Q5_K panels. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_int8_avx512.h"

MR_INLINE const mr_panel_q4_k *q4_k(const uint8_t *block) {
    return (const mr_panel_q4_k *)(const void *)block;
}

/* 0..15 */
MR_INLINE __m512i q4_k_group(const uint8_t *block, int sub, int g) {
    __m512i q = _mm512_loadu_si512(q4_k(block)->q[sub][g % 4]);
    return _mm512_and_si512(g < 4 ? q : _mm512_srli_epi16(q, 4), _mm512_set1_epi8(15));
}

MR_INLINE __m512 q4_k_scale(const uint8_t *block, int sub, int half) {
    (void)half;
    return _mm512_mul_ps(load_f16(q4_k(block)->d), load_u8(q4_k(block)->scale[sub].sc));
}

MR_INLINE __m512 q4_k_min(const uint8_t *block, int sub, int half) {
    (void)half;
    return negate(_mm512_mul_ps(load_f16(q4_k(block)->dmin), load_u8(q4_k(block)->scale[sub].m)));
}

static const format Q4_K = {
    .block_k = 256,
    .block_bytes = sizeof(mr_panel_q4_k),
    .n_scales = 1,
    .n_mins = 1,
    .group = q4_k_group,
    .scale = q4_k_scale,
    .min = q4_k_min,
};

/* 0..31: a Q5_K block begins as a Q4_K block does, with its scales and low bits. */
MR_INLINE __m512i q5_k_group(const uint8_t *block, int sub, int g) {
    __m512i high = _mm512_loadu_si512(((const mr_panel_q5_k *)(const void *)block)->high[sub]);
    __m512i fifth = g < 4 ? _mm512_slli_epi16(high, 4 - g) : _mm512_srli_epi16(high, g - 4); /* in bit 4 */
    /* (fifth & 16) | low */
    return _mm512_ternarylogic_epi32(fifth, _mm512_set1_epi8(16), q4_k_group(block, sub, g), 0xea);
}

static const format Q5_K = {
    .block_k = 256,
    .block_bytes = sizeof(mr_panel_q5_k),
    .n_scales = 1,
    .n_mins = 1,
    .group = q5_k_group,
    .scale = q4_k_scale,
    .min = q4_k_min,
};

MATMUL_KERNEL(matmul_q4_k_avx512, Q4_K)
MATMUL_KERNEL(matmul_q5_k_avx512, Q5_K)
