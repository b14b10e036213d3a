/* backends/cpu/kernels/matmul_x8_avx512.c - rule M for X8 and X8M panels. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_int8_avx512.h"

MR_INLINE __m512 x8_scale(const uint8_t *block, int sub, int half) {
    (void)sub;
    return _mm512_loadu_ps(((const mr_panel_x8 *)(const void *)block)->scale[half]);
}
MR_INLINE __m512 x8m_scale(const uint8_t *block, int sub, int half) {
    (void)sub;
    return _mm512_loadu_ps(((const mr_panel_x8m *)(const void *)block)->scale[half]);
}
MR_INLINE __m512 x8m_min(const uint8_t *block, int sub, int half) {
    (void)sub;
    return _mm512_loadu_ps(((const mr_panel_x8m *)(const void *)block)->min[half]);
}

static const format X8 = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_x8),
    .n_scales = 2,
    .log_offset = 7,
    .bytes_at = offsetof(mr_panel_x8, q),
    .scale = x8_scale,
};
static const format X8M = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_x8m),
    .n_scales = 2,
    .n_mins = 2,
    .log_offset = 7,
    .bytes_at = offsetof(mr_panel_x8m, q),
    .scale = x8m_scale,
    .min = x8m_min,
};

MATMUL_KERNEL(matmul_x8_avx512, X8)
MATMUL_KERNEL(matmul_x8m_avx512, X8M)
