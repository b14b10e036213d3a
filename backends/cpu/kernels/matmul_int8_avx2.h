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
 *
 * Integer factors cost nothing without AVX-VNNI: VPMADDWD, which adds two 16-bit sums in 32 bits, multiplies them by
 * the factor instead of 1. With AVX-VNNI, sums are multiplied as floats.
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
    v16 scale[2], min[2]; /* of the two halves of the 32 k; a format with one sum uses only [0] */
#ifdef MR_VNNI
    v16 factor[2];
#else
    v16i factor[2]; /* in both 16-bit words of a lane */
    v16i start;     /* in each word, -offset times one of the two factors */
#endif
} step;

/* sum += for each of 8 lanes, the products of the weights and activations of f.run groups of four k. side: lanes 0..7
 * or 8..15. factor: of all products, in 16-bit words; 1 with AVX-VNNI. */
MR_ALWAYS_INLINE __m256i dot_run(const format f, const step *s, int group, int side, const int8_t *a, __m256i factor,
                                 __m256i sum) {
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
    (void)pairs, (void)factor;
    return sum;
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, factor));
#endif
}

/* The sum of 16 activations. */
MR_ALWAYS_INLINE int32_t sum_16(const int8_t *a) {
    __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_loadu_si128((const void *)a));
    __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
    fours = _mm_hadd_epi32(fours, fours);
    return _mm_cvtsi128_si32(_mm_hadd_epi32(fours, fours));
}

#ifdef MR_VNNI

/* Adds the products of the 32 k in s, whose sums have factors, to acc, without the scale of the block. */
MR_ALWAYS_INLINE void add_factor_rows(const format f, const step *s, const a8_row *a, int32_t b, int n,
                                      float (*acc)[MR_PANEL]) {
    const __m256i one = _mm256_set1_epi16(1);
    v16 x[TILE_ROWS];
    for (int r = 0; r < n; r++)
        x[r] = v16_set1(0.0f);
    for (int h = 0; h < 2; h++) {
        v16i sum[TILE_ROWS];
        for (int r = 0; r < n; r++)
            sum[r] = v16i_set1(-f.offset * sum_16(a[r].q + 32 * b + 16 * h));
        for (int g = 4 * h; g < 4 * h + 4; g += f.run)
            for (int r = 0; r < n; r++) {
                sum[r].lo = dot_run(f, s, g, 0, a[r].q + 32 * b, one, sum[r].lo);
                sum[r].hi = dot_run(f, s, g, 1, a[r].q + 32 * b, one, sum[r].hi);
            }
        for (int r = 0; r < n; r++)
            x[r] = v16_fma(v16_from_i32(sum[r]), s->factor[h], x[r]);
    }
    for (int r = 0; r < n; r++)
        v16_store(acc[r], v16_fma(x[r], v16_set1(a[r].d[b]), v16_load(acc[r])));
}

MR_ALWAYS_INLINE void decode_factors(const format f, const uint8_t *block, int sub, step *out) {
    for (int h = 0; h < 2; h++)
        out->factor[h] = v16_load_i8(f.factors(block, sub, h));
}

#else

/* In each 32-bit lane, the sums of the two halves of 32 activations as 16-bit words. */
MR_ALWAYS_INLINE __m256i both_sums(const int8_t *a) {
    __m256i plus_128 = _mm256_xor_si256(_mm256_loadu_si256((const void *)a), _mm256_set1_epi8(-128));
    __m256i eights = _mm256_sad_epu8(plus_128, _mm256_setzero_si256());
    __m256i sums = _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0x4e));
    sums = _mm256_sub_epi16(sums, _mm256_set1_epi16(16 * 128));
    __m256i first = _mm256_permute4x64_epi64(sums, 0x00), second = _mm256_permute4x64_epi64(sums, 0xaa);
    first = _mm256_shuffle_epi32(first, 0), second = _mm256_slli_epi32(_mm256_shuffle_epi32(second, 0), 16);
    return _mm256_blend_epi16(first, second, 0xaa);
}

/* Adds the products of the 32 k in s, whose sums have factors, to acc, without the scale of the block. */
MR_ALWAYS_INLINE void add_factor_rows(const format f, const step *s, const a8_row *a, int32_t b, int n,
                                      float (*acc)[MR_PANEL]) {
    v16i sum[TILE_ROWS];
    for (int r = 0; r < n; r++) {
        __m256i sums = both_sums(a[r].q + 32 * b);
        sum[r] = (v16i){_mm256_madd_epi16(s->start.lo, sums), _mm256_madd_epi16(s->start.hi, sums)};
    }
    for (int g = 0; g < 8; g += f.run) {
        for (int r = 0; r < n; r++)
            sum[r].lo = dot_run(f, s, g, 0, a[r].q + 32 * b, s->factor[g / 4].lo, sum[r].lo);
        for (int r = 0; r < n; r++)
            sum[r].hi = dot_run(f, s, g, 1, a[r].q + 32 * b, s->factor[g / 4].hi, sum[r].hi);
    }
    for (int r = 0; r < n; r++)
        v16_store(acc[r], v16_fma(v16_from_i32(sum[r]), v16_set1(a[r].d[b]), v16_load(acc[r])));
}

/* The words of a and b side by side in the lanes of 16 rows. The quarters of a and b stand in the order 0, 2, 1, 3. */
MR_ALWAYS_INLINE v16i pair_words(__m256i a, __m256i b) {
    return (v16i){_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)};
}

MR_ALWAYS_INLINE void decode_factors(const format f, const uint8_t *block, int sub, step *out) {
    __m256i words[2], minus[2], offset = _mm256_set1_epi16((int16_t)-f.offset);
    for (int h = 0; h < 2; h++) {
        __m128i bytes = _mm_loadu_si128((const void *)f.factors(block, sub, h));
        words[h] = _mm256_permute4x64_epi64(_mm256_cvtepi8_epi16(bytes), 0xd8);
        minus[h] = _mm256_mullo_epi16(words[h], offset);
        out->factor[h] = pair_words(words[h], words[h]);
    }
    out->start = pair_words(minus[0], minus[1]);
}

#endif

/* Adds the products of the 32 k in s and the same 32 k (block b) of the n activation rows at a. acc: [row][lane] */
MR_ALWAYS_INLINE void add_rows(const format f, const step *s, const a8_row *a, int32_t b, int n,
                               float (*acc)[MR_PANEL]) {
    if (f.factors) {
        add_factor_rows(f, s, a, b, n, acc);
        return;
    }
    const __m256i one = _mm256_set1_epi16(1);
    int n_groups = 8 / f.n_sums;
    for (int h = 0; h < f.n_sums; h++) {
        v16i sum[TILE_ROWS];
        for (int r = 0; r < n; r++)
            sum[r] = v16_bits(v16_set1(0.0f));
        for (int g = h * n_groups; g < (h + 1) * n_groups; g += f.run) {
            for (int r = 0; r < n; r++)
                sum[r].lo = dot_run(f, s, g, 0, a[r].q + 32 * b, one, sum[r].lo);
            for (int r = 0; r < n; r++)
                sum[r].hi = dot_run(f, s, g, 1, a[r].q + 32 * b, one, sum[r].hi);
        }
        for (int r = 0; r < n; r++) {
            int32_t a_sum = 0;
            if (f.offset || f.n_mins)
                a_sum = f.n_sums == 1 ? a[r].sum[b] : sum_16(a[r].q + 32 * b + 16 * h);
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

MR_ALWAYS_INLINE void decode(const format f, const uint8_t *block, int sub, step *out) {
    UNROLL
    for (int g = 0; g < 8; g++)
        out->q[g] = f.group(block, sub, g);
    if (f.factors) {
        decode_factors(f, block, sub, out);
        return;
    }
    UNROLL
    for (int h = 0; h < f.n_sums; h++)
        out->scale[h] = f.scale(block, sub, h);
    UNROLL
    for (int h = 0; h < f.n_mins; h++)
        out->min[h] = f.min(block, sub, h);
}

/* acc += scale * the sums of a block, which begin anew. */
MR_ALWAYS_INLINE void add_block(v16 scale, int n, float (*of_block)[MR_PANEL], float (*acc)[MR_PANEL]) {
    for (int r = 0; r < n; r++) {
        v16_store(acc[r], v16_fma(v16_load(of_block[r]), scale, v16_load(acc[r])));
        v16_store(of_block[r], v16_set1(0.0f));
    }
}

MR_ALWAYS_INLINE void block_of_rows(const format f, const mr_matmul_args *args, int32_t panel, int32_t row,
                                    int n_rows) {
    const uint8_t *w = args->w + (size_t)panel * ((size_t)(args->k / f.block_k) * (size_t)f.block_bytes);
    _Alignas(32) float acc[BLOCK_ROWS][MR_PANEL], of_block[BLOCK_ROWS][MR_PANEL]; /* of_block: with factors only */
    float(*sums)[MR_PANEL] = f.factors ? of_block : acc;
    a8_row a[BLOCK_ROWS];
    int subs = f.block_k / 32;
    for (int r = 0; r < n_rows; r++)
        a[r] = a8_row_at(matmul_a_row(args, row + r), args->k);
    memset(acc, 0, sizeof acc[0] * (size_t)n_rows);
    if (f.factors)
        memset(of_block, 0, sizeof of_block[0] * (size_t)n_rows);
    for (int32_t b = 0; b < args->k / 32; b++) {
        const uint8_t *block = w + (size_t)(b / subs) * (size_t)f.block_bytes;
        step s;
        decode(f, block, b % subs, &s);
        int r = 0;
        for (; r + TILE_ROWS <= n_rows; r += TILE_ROWS)
            add_rows(f, &s, a + r, b, TILE_ROWS, sums + r);
        for (; r + 2 <= n_rows; r += 2)
            add_rows(f, &s, a + r, b, 2, sums + r);
        if (r < n_rows)
            add_rows(f, &s, a + r, b, 1, sums + r);
        if (f.factors && b % subs == subs - 1)
            add_block(f.scale(block, 0, 0), n_rows, of_block, acc);
    }
    for (int r = 0; r < n_rows; r++)
        store_panel(args, row + r, panel, acc[r]);
}

MR_ALWAYS_INLINE void matmul(const format f, const mr_matmul_args *args, int32_t panel_first, int32_t panel_last,
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
