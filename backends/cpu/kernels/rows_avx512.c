/* backends/cpu/kernels/rows_avx512.c - the row operations of rows_vec.h with AVX-512 F, BW, VL, DQ. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_avx512.h"

#include "backends/cpu/kernels/rows_vec.h"

void mr_quantize_avx512(const float *x, uint8_t *a8, int32_t n) {
    quantize_vec(x, a8, n);
}

void mr_round_bf16_avx512(const float *x, uint16_t *bf16, int32_t n) {
    round_bf16_vec(x, bf16, n);
}

void mr_rms_norm_avx512(const float *x, const float *w, float *y, int32_t n, int32_t m, float eps) {
    rms_norm_vec(x, w, y, n, m, eps);
}

void mr_rope_avx512(float *x, int32_t n_heads, int32_t head_dim, int32_t n_rot, mr_rope_pairs pairs,
                    const float *table) {
    rope_vec(x, n_heads, head_dim, n_rot, pairs, table);
}

void mr_glu_avx512(const float *gate, const float *up, float *y, int32_t n, mr_glu glu) {
    glu_vec(gate, up, y, n, glu);
}

void mr_soft_cap_avx512(const float *x, float *y, int32_t n, float cap) {
    soft_cap_vec(x, y, n, cap);
}

void mr_kv_write_avx512(const mr_kv_write_args *args, int32_t row_first, int32_t row_last) {
    kv_write_vec(args, row_first, row_last);
}
