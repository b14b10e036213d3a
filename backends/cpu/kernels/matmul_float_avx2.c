/* backends/cpu/kernels/matmul_float_avx2.c - rule M for F32, F16 and BF16 weights with AVX2. It has loops of its own
 * instead of those of matmul_float_vec.h: a tile is one panel by four rows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_avx2.h"

enum { TILE_PANELS = 1, TILE_ROWS = 4 };

#include "backends/cpu/kernels/matmul_tiles.h"

/* acc += the 16 weights at p times a. */
MR_ALWAYS_INLINE void add_f32(const uint8_t *p, __m256 a, __m256 acc[2]) {
    acc[0] = _mm256_fmadd_ps(_mm256_loadu_ps((const void *)p), a, acc[0]);
    acc[1] = _mm256_fmadd_ps(_mm256_loadu_ps((const void *)(p + 32)), a, acc[1]);
}
MR_ALWAYS_INLINE void add_f16(const uint8_t *p, __m256 a, __m256 acc[2]) {
    acc[0] = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)), a, acc[0]);
    acc[1] = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 16))), a, acc[1]);
}

/* Each row's pair of k is one 32-bit word; the odd k is the upper half. */
MR_ALWAYS_INLINE __m256 odd_bf16(__m256i pair) {
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int32_t)0xffff0000u)));
}
MR_ALWAYS_INLINE __m256 even_bf16(__m256i pair) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
}
MR_ALWAYS_INLINE void add_bf16(const uint8_t *p, __m256i a, __m256 acc[2]) {
    for (int h = 0; h < 2; h++) {
        __m256i w = _mm256_loadu_si256((const void *)(p + 32 * h));
        acc[h] = _mm256_fmadd_ps(odd_bf16(w), odd_bf16(a), acc[h]);
        acc[h] = _mm256_fmadd_ps(even_bf16(w), even_bf16(a), acc[h]);
    }
}

MR_ALWAYS_INLINE void run_tile(const mr_matmul_args *args, mr_panel_type type, int32_t panel, int32_t row, int n_rows) {
    const uint8_t *w = args->w + (size_t)panel * mr_panel_type_bytes(type, args->k), *a[TILE_ROWS];
    __m256 acc[TILE_ROWS][2];
    for (int r = 0; r < n_rows; r++) {
        a[r] = matmul_a_row(args, row + r);
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    }
    size_t n = type == MR_PANEL_BF16 ? ((size_t)args->k + 1) / 2 : (size_t)args->k;
    for (size_t i = 0; i < n; i++, w += type == MR_PANEL_F16 ? 32 : 64)
        for (int r = 0; r < n_rows; r++) {
            __m256 x = _mm256_broadcast_ss((const float *)(const void *)(a[r] + 4 * i));
            if (type == MR_PANEL_F32)
                add_f32(w, x, acc[r]);
            else if (type == MR_PANEL_F16)
                add_f16(w, x, acc[r]);
            else
                add_bf16(w, _mm256_castps_si256(x), acc[r]);
        }
    for (int r = 0; r < n_rows; r++) {
        float sums[MR_PANEL];
        v16_store(sums, (v16){acc[r][0], acc[r][1]});
        store_panel(args, row + r, panel, sums);
    }
}

MR_ALWAYS_INLINE void matmul(mr_panel_type type, const mr_matmul_args *args, int32_t panel_first, int32_t panel_last,
                             int32_t row_first, int32_t row_last) {
    for (int32_t panel = panel_first; panel < panel_last; panel++) {
        int32_t row = row_first;
        for (; row + TILE_ROWS <= row_last; row += TILE_ROWS)
            run_tile(args, type, panel, row, TILE_ROWS);
        for (; row < row_last; row++)
            run_tile(args, type, panel, row, 1);
    }
}

MATMUL_KERNEL(matmul_f32_avx2, MR_PANEL_F32)
MATMUL_KERNEL(matmul_f16_avx2, MR_PANEL_F16)
MATMUL_KERNEL(matmul_bf16_avx2, MR_PANEL_BF16)
