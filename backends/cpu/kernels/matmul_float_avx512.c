/* backends/cpu/kernels/matmul_float_avx512.c - rule M for F32 and F16. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_avx512.h"

enum { TILE_ROWS = 8 };

/* The weights of 16 rows at k. */
ALWAYS_INLINE __m512 load_weights(const uint8_t *panel, int32_t k, mr_type type) {
    if (type == MR_TYPE_F32)
        return _mm512_loadu_ps(panel + (size_t)k * 64);
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(panel + (size_t)k * 32)));
}

ALWAYS_INLINE void tile(const mr_matmul_args *args, mr_type type, int32_t panel, int32_t row, int n_rows) {
    const float *a[TILE_ROWS];
    __m512 acc[TILE_ROWS];
    const uint8_t *w = args->w + (size_t)panel * mr_panel_bytes(type, args->k);
    for (int r = 0; r < n_rows; r++) {
        a[r] = (const float *)(const void *)matmul_a_row(args, row + r);
        acc[r] = _mm512_setzero_ps();
    }
    for (int32_t k = 0; k < args->k; k++) {
        __m512 x = load_weights(w, k, type);
        for (int r = 0; r < n_rows; r++)
            acc[r] = _mm512_fmadd_ps(x, _mm512_set1_ps(a[r][k]), acc[r]);
    }
    for (int r = 0; r < n_rows; r++)
        store_panel(args, row + r, panel, acc[r]);
}

ALWAYS_INLINE void matmul(const mr_matmul_args *args, mr_type type, int32_t panel_first, int32_t panel_last,
                          int32_t row_first, int32_t row_last) {
    for (int32_t panel = panel_first; panel < panel_last; panel++) {
        int32_t row = row_first;
        for (; row + TILE_ROWS <= row_last; row += TILE_ROWS)
            tile(args, type, panel, row, TILE_ROWS);
        for (; row < row_last; row++)
            tile(args, type, panel, row, 1);
    }
}

void mr_matmul_f32_avx512(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                          int32_t row_last) {
    matmul(args, MR_TYPE_F32, panel_first, panel_last, row_first, row_last);
}

void mr_matmul_f16_avx512(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                          int32_t row_last) {
    matmul(args, MR_TYPE_F16, panel_first, panel_last, row_first, row_last);
}
