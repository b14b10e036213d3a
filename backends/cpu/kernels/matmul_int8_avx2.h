/* backends/cpu/kernels/matmul_int8_avx2.h - rule M for the quantised types on 256-bit registers: the loops, and the dot
 * product of bytes. A format (matmul_int8_formats.h) says how 32 k of a panel become bytes, scales and minima. 32 k are
 * decoded once for up to 32 activation rows, four of which share each load of weights.
 *
 * With AVX-VNNI (MR_VNNI), VPDPBUSD adds four products of unsigned weight and activation to 32-bit sums: exact.
 * Without AVX-VNNI, VPMADDUBSW adds two products in 16 bits and would saturate at 32767. Activations are within
 * -127..127 (rule Q). So two products with weights of at most 15, 31, 63, 126, 128 are at most 3810, 7874, 16002,
 * 32004, 32512: no sum saturates. 4, 4, 2, 1, 1 of these sums can be added in 16 bits (format.run). Weights of both
 * signs up to 128 are passed as |w|, and the activation gets the sign of w. Other weights are passed as w + offset, and
 * offset times the sum of the activations is subtracted.
 * Include it once for each level, after MR_VNNI is defined or not. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_AVX2_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_AVX2_H

#include <string.h>

#include "backends/cpu/kernels/vec_avx2.h"

enum { TILE_PANELS = 1, TILE_ROWS = 4, BLOCK_ROWS = 32 };
#ifdef MR_VNNI
enum { OFFSET_BYTES = 128, OFFSET_X8 = 128 };
#else
enum { OFFSET_BYTES = 0, OFFSET_X8 = 64 };
#endif
enum { OFFSET_Q4_0 = 8, OFFSET_MXFP4 = 16, OFFSET_Q6_K = 32, OFFSET_X8M = 0 };

#include "backends/cpu/kernels/matmul_int8_formats.h"
#include "backends/cpu/kernels/matmul_tiles.h"

/* 32 k of a panel. */
typedef struct step {
    v64 q[8];             /* groups of 4 k */
    v16 scale[2], min[2]; /* of the two halves of the 32 k; a format with one scale uses only [0] */
} step;

/* sum += for each of 8 lanes, the products of the weights and activations of f.run groups of four k. side: lanes 0..7
 * or 8..15. */
MR_INLINE __m256i dot_run(const format f, const step *s, int group, int side, const int8_t *a, __m256i sum) {
    __m256i pairs = _mm256_setzero_si256();
    for (int i = 0; i < f.run; i++) {
        int32_t word;
        memcpy(&word, a + 4 * (group + i), 4);
        __m256i x = _mm256_set1_epi32(word), bytes = side ? s->q[group + i].hi : s->q[group + i].lo;
#ifdef MR_VNNI
        sum = _mm256_dpbusd_avx_epi32(sum, bytes, x);
#else
        if (f.is_signed) {
            x = _mm256_sign_epi8(x, bytes);
            bytes = _mm256_abs_epi8(bytes);
        }
        __m256i p = _mm256_maddubs_epi16(bytes, x);
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
MR_INLINE int32_t sum_16(const int8_t *a) {
    __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_loadu_si128((const void *)a));
    __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
    fours = _mm_hadd_epi32(fours, fours);
    return _mm_cvtsi128_si32(_mm_hadd_epi32(fours, fours));
}

/* Adds the products of the 32 k in s and the same 32 k (block b) of the n activation rows at a. acc: [row][lane] */
MR_INLINE void add_rows(const format f, const step *s, const a8_row *a, int32_t b, int n, float (*acc)[MR_PANEL]) {
    int n_groups = 8 / f.n_scales;
    for (int h = 0; h < f.n_scales; h++) {
        v16i sum[TILE_ROWS];
        for (int r = 0; r < n; r++)
            sum[r] = v16_bits(v16_set1(0.0f));
        for (int g = h * n_groups; g < (h + 1) * n_groups; g += f.run) {
            for (int r = 0; r < n; r++)
                sum[r].lo = dot_run(f, s, g, 0, a[r].q + 32 * b, sum[r].lo);
            for (int r = 0; r < n; r++)
                sum[r].hi = dot_run(f, s, g, 1, a[r].q + 32 * b, sum[r].hi);
        }
        for (int r = 0; r < n; r++) {
            int32_t a_sum = 0;
            if (f.offset || f.n_mins)
                a_sum = f.n_scales == 1 ? a[r].sum[b] : sum_16(a[r].q + 32 * b + 16 * h);
            if (f.offset)
                sum[r] = v16i_add(sum[r], v16i_set1(-f.offset * a_sum));
            v16 d = v16_set1(a[r].d[b]), x = v16_load(acc[r]);
            x = v16_fma(v16_from_i32(sum[r]), v16_mul(s->scale[h], d), x);
            if (f.n_mins)
                x = v16_fma(s->min[h], v16_mul(d, v16_set1((float)a_sum)), x);
            v16_store(acc[r], x);
        }
    }
}

MR_INLINE void decode(const format f, const uint8_t *block, int sub, step *out) {
    UNROLL
    for (int g = 0; g < 8; g++)
        out->q[g] = f.group(block, sub, g);
    UNROLL
    for (int h = 0; h < f.n_scales; h++)
        out->scale[h] = f.scale(block, sub, h);
    UNROLL
    for (int h = 0; h < f.n_mins; h++)
        out->min[h] = f.min(block, sub, h);
}

MR_INLINE void block_of_rows(const format f, const mr_matmul_args *args, int32_t panel, int32_t row, int n_rows) {
    const uint8_t *w = args->w + (size_t)panel * ((size_t)(args->k / f.block_k) * (size_t)f.block_bytes);
    _Alignas(32) float acc[BLOCK_ROWS][MR_PANEL];
    a8_row a[BLOCK_ROWS];
    int subs = f.block_k / 32;
    for (int r = 0; r < n_rows; r++)
        a[r] = a8_row_at(matmul_a_row(args, row + r), args->k);
    memset(acc, 0, sizeof acc[0] * (size_t)n_rows);
    for (int32_t b = 0; b < args->k / 32; b++) {
        step s;
        decode(f, w + (size_t)(b / subs) * (size_t)f.block_bytes, b % subs, &s);
        int r = 0;
        for (; r + TILE_ROWS <= n_rows; r += TILE_ROWS)
            add_rows(f, &s, a + r, b, TILE_ROWS, acc + r);
        for (; r + 2 <= n_rows; r += 2)
            add_rows(f, &s, a + r, b, 2, acc + r);
        if (r < n_rows)
            add_rows(f, &s, a + r, b, 1, acc + r);
    }
    for (int r = 0; r < n_rows; r++)
        store_panel(args, row + r, panel, acc[r]);
}

MR_INLINE void matmul(const format f, const mr_matmul_args *args, int32_t panel_first, int32_t panel_last,
                      int32_t row_first, int32_t row_last) {
    for (int32_t row = row_first; row < row_last; row += BLOCK_ROWS)
        for (int32_t panel = panel_first; panel < panel_last; panel++) {
            int n_rows = least(row_last - row, BLOCK_ROWS);
            if (n_rows == 1)
                block_of_rows(f, args, panel, row, 1);
            else
                block_of_rows(f, args, panel, row, n_rows);
        }
}

#endif
