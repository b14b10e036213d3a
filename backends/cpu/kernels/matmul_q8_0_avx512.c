/* backends/cpu/kernels/matmul_q8_0_avx512.c - rule M for Q8_0 panels. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_int8_avx512.h"

MR_INLINE __m512 q8_0_scale(const uint8_t *block, int sub, int half) {
    (void)sub, (void)half;
    return load_f16(((const mr_panel_q8_0 *)(const void *)block)->d);
}

static const format Q8_0 = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_q8_0),
    .n_scales = 1,
    .log_offset = 7,
    .bytes_at = offsetof(mr_panel_q8_0, q),
    .scale = q8_0_scale,
};

MATMUL_KERNEL(matmul_q8_0_avx512, Q8_0)
