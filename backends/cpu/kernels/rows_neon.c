/* backends/cpu/kernels/rows_neon.c - the row operations of rows_vec.h with NEON. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_neon.h"

#include "backends/cpu/kernels/rows_vec.h"

void mr_quantize_neon(const float *x, uint8_t *a8, int32_t n) {
    quantize_vec(x, a8, n);
}

void mr_round_bf16_neon(const float *x, uint16_t *bf16, int32_t n) {
    round_bf16_vec(x, bf16, n);
}

void mr_rms_norm_neon(const float *x, const float *w, float *y, int32_t n, int32_t m, float eps) {
    rms_norm_vec(x, w, y, n, m, eps);
}

void mr_rope_neon(float *x, int32_t n_heads, int32_t head_dim, int32_t n_rot, mr_rope_pairs pairs, const float *table) {
    rope_vec(x, n_heads, head_dim, n_rot, pairs, table);
}

void mr_silu_mul_neon(const float *gate, const float *up, float *y, int32_t n) {
    silu_mul_vec(gate, up, y, n);
}

void mr_kv_write_neon(const mr_kv_write_args *args, int32_t row_first, int32_t row_last) {
    kv_write_vec(args, row_first, row_last);
}
