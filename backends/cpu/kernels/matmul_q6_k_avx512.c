/* backends/cpu/kernels/matmul_q6_k_avx512.c - rule M for Q6_K panels. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_int8_avx512.h"

MR_INLINE const mr_panel_q6_k *q6_k(const uint8_t *block) {
    return (const mr_panel_q6_k *)(const void *)block;
}

/* 0..63. Three of the four groups of 16 k lie in the low six bits, the fourth in the high two of all three. */
MR_INLINE __m512i q6_k_group(const uint8_t *block, int sub, int g) {
    const uint8_t(*q)[MR_PANEL][4] = q6_k(block)->q[sub * 2 + g / 4];
    const __m512i low6 = _mm512_set1_epi8(63);
    if (g % 4 < 3)
        return _mm512_and_si512(_mm512_loadu_si512(q[g % 4]), low6);
    __m512i a = _mm512_loadu_si512(q[0]), b = _mm512_loadu_si512(q[1]), c = _mm512_loadu_si512(q[2]);
    /* Selects: a bit of the mask takes the second operand, else the third. */
    __m512i ab =
        _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x30), _mm512_srli_epi16(a, 2), _mm512_srli_epi16(b, 4), 0xca);
    __m512i abc = _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x3c), ab, _mm512_srli_epi16(c, 6), 0xca);
    return _mm512_and_si512(abc, low6);
}

MR_INLINE __m512 q6_k_scale(const uint8_t *block, int sub, int half) {
    return _mm512_mul_ps(load_f16(q6_k(block)->d), load_i8(q6_k(block)->sc[sub * 2 + half]));
}

static const format Q6_K = {
    .block_k = 256,
    .block_bytes = sizeof(mr_panel_q6_k),
    .n_scales = 2,
    .log_offset = 5,
    .group = q6_k_group,
    .scale = q6_k_scale,
};

MATMUL_KERNEL(matmul_q6_k_avx512, Q6_K)
