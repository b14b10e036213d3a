/* backends/cpu/kernels/matmul_int8_avx2.h - rule M for the quantised types on 256-bit registers: the walk, and the dot
 * product of bytes. A format says how 32 k of a panel become bytes, scales and minima; matmul_int8_formats_avx2.h has
 * them. 32 k are decoded once for up to 32 activation rows, four of which share each load of weights.
 *
 * With AVX-VNNI (MR_VNNI) VPDPBUSD adds four products of unsigned weight and activation to 32-bit sums: exact.
 * Without, VPMADDUBSW adds two products in 16 bits and would saturate at 32767. Activations are within -127..127 (rule
 * Q), so two products with weights of at most 15, 31, 63, 126, 128 are at most 3810, 7874, 16002, 32004, 32512: no sum
 * saturates, and 4, 4, 2, 1, 1 of them add in 16 bits (format.run). Weights of both signs up to 128 go in as |w|, and
 * the activation takes the sign; the others as w + offset, and offset times the sum of the activations is taken away.
 * Include once for each level, after MR_VNNI is chosen. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_AVX2_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_AVX2_H

#include "backends/cpu/kernels/matmul_avx2.h"

enum { BLOCK_ROWS = 32, TILE_ROWS = 4 };

/* 32 k of a panel. Side 0 is rows 0..7, side 1 rows 8..15. */
typedef struct step {
    __m256i q[8][2];               /* [group of 4 k][side] */
    __m256 scale[2][2], min[2][2]; /* [half of the 32 k, or only 0][side] */
} step;

typedef struct format {
    int32_t block_k; /* of the panel's blocks */
    size_t block_bytes;
    int n_scales; /* of 32 k */
    int offset;   /* weight = decoded byte - offset */
    int run;
    bool is_signed; /* decoded bytes are signed weights */
    bool has_min;
    void (*decode)(const uint8_t *block, int sub, step *out); /* sub: which 32 k of the block */
} format;

/* sum += the products of four k of 8 rows with four activations. */
ALWAYS_INLINE __m256i dot_run(const format *f, const step *s, int group, int side, const int8_t *a, __m256i sum) {
    __m256i pairs = _mm256_setzero_si256();
    for (int i = 0; i < f->run; i++) {
        int32_t word;
        memcpy(&word, a + 4 * (group + i), 4);
        __m256i x = _mm256_set1_epi32(word), w = s->q[group + i][side];
#ifdef MR_VNNI
        sum = _mm256_dpbusd_avx_epi32(sum, w, x);
#else
        if (f->is_signed) {
            x = _mm256_sign_epi8(x, w);
            w = _mm256_abs_epi8(w);
        }
        __m256i p = _mm256_maddubs_epi16(w, x);
        pairs = i == 0 ? p : _mm256_add_epi16(pairs, p);
#endif
    }
#ifdef MR_VNNI
    (void)pairs;
    return sum;
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

/* The sum of 16 activations. */
ALWAYS_INLINE int32_t sum_16(const int8_t *a) {
    __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_loadu_si128((const void *)a));
    __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
    fours = _mm_hadd_epi32(fours, fours);
    return _mm_cvtsi128_si32(_mm_hadd_epi32(fours, fours));
}

/* The n rows at a with the 32 k of s, which are block b of the activations. acc: [row][lane] */
ALWAYS_INLINE void add_rows(const format *f, const step *s, const a8_row *a, int32_t b, int n, float (*acc)[MR_PANEL]) {
    int n_groups = 8 / f->n_scales;
    for (int h = 0; h < f->n_scales; h++) {
        __m256i sum[TILE_ROWS][2];
        for (int r = 0; r < n; r++)
            sum[r][0] = sum[r][1] = _mm256_setzero_si256();
        for (int g = h * n_groups; g < (h + 1) * n_groups; g += f->run)
            for (int side = 0; side < 2; side++)
                for (int r = 0; r < n; r++)
                    sum[r][side] = dot_run(f, s, g, side, a[r].q + 32 * b, sum[r][side]);
        for (int r = 0; r < n; r++) {
            __m256 d = _mm256_broadcast_ss(a[r].d + b);
            int32_t a_sum = 0;
            if (f->offset || f->has_min)
                a_sum = f->n_scales == 1 ? a[r].sum[b] : sum_16(a[r].q + 32 * b + 16 * h);
            for (int side = 0; side < 2; side++) {
                __m256i isum = sum[r][side];
                if (f->offset)
                    isum = _mm256_sub_epi32(isum, _mm256_set1_epi32(f->offset * a_sum));
                __m256 x = _mm256_load_ps(acc[r] + 8 * side);
                x = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), _mm256_mul_ps(s->scale[h][side], d), x);
                if (f->has_min)
                    x = _mm256_fmadd_ps(s->min[h][side], _mm256_mul_ps(d, _mm256_set1_ps((float)a_sum)), x);
                _mm256_store_ps(acc[r] + 8 * side, x);
            }
        }
    }
}

ALWAYS_INLINE void block_of_rows(const format *f, const mr_matmul_args *args, int32_t panel, int32_t row, int n_rows) {
    const uint8_t *w = args->w + (size_t)panel * ((size_t)(args->k / f->block_k) * f->block_bytes);
    _Alignas(32) float acc[BLOCK_ROWS][MR_PANEL];
    a8_row a[BLOCK_ROWS];
    int subs = f->block_k / 32;
    for (int r = 0; r < n_rows; r++)
        a[r] = a8_row_at(matmul_a_row(args, row + r), args->k);
    memset(acc, 0, sizeof acc[0] * (size_t)n_rows);
    for (int32_t b = 0; b < args->k / 32; b++) {
        step s;
        f->decode(w + (size_t)(b / subs) * f->block_bytes, b % subs, &s);
        int r = 0;
        for (; r + TILE_ROWS <= n_rows; r += TILE_ROWS)
            add_rows(f, &s, a + r, b, TILE_ROWS, acc + r);
        for (; r + 2 <= n_rows; r += 2)
            add_rows(f, &s, a + r, b, 2, acc + r);
        if (r < n_rows)
            add_rows(f, &s, a + r, b, 1, acc + r);
    }
    for (int r = 0; r < n_rows; r++)
        store_panel(args, row + r, panel, _mm256_load_ps(acc[r]), _mm256_load_ps(acc[r] + 8));
}

ALWAYS_INLINE void matmul(const format *f, const mr_matmul_args *args, int32_t panel_first, int32_t panel_last,
                          int32_t row_first, int32_t row_last) {
    for (int32_t row = row_first; row < row_last; row += BLOCK_ROWS)
        for (int32_t panel = panel_first; panel < panel_last; panel++) {
            int n_rows = row_last - row < BLOCK_ROWS ? row_last - row : BLOCK_ROWS;
            if (n_rows == 1)
                block_of_rows(f, args, panel, row, 1);
            else
                block_of_rows(f, args, panel, row, n_rows);
        }
}

#endif
