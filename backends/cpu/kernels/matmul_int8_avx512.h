/* backends/cpu/kernels/matmul_int8_avx512.h - rule M for quantised weights with VNNI, for every panel format.
 * A tile is 2 panels by up to 7 rows: 14 integer sums and 14 float sums. For every 32 k, each pair of sums takes 8
 * dpbusd, one conversion, one product of scales and one fma (two with a minimum). On Intel's cores these instructions
 * share the ports of dpbusd. So the limit is 8/11 of the VNNI peak; 8/12 with a minimum, 8/14 with two scales, 8/13
 * with factors. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_AVX512_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_AVX512_H

#include "backends/cpu/kernels/vec_avx512.h"

enum {
    TILE_PANELS = 2,
    TILE_ROWS = 7,
    TILE_ROWS_FACTORS = 4, /* of each of several tiles with factors, whose sums need more registers */
    CHUNK = 512,
    STEP = 32,
    NEAR_BYTES = 1024, /* how far one row of a plain format prefetches: ask_near */
};
enum { /* VPDPBUSD needs unsigned weights; bytes of value + 128 need no decoding */
       OFFSET_BYTES = 128,
       OFFSET_Q4_0 = 8,
       OFFSET_MXFP4 = 16,
       OFFSET_Q6_K = 32,
       OFFSET_X8 = 128,
       OFFSET_X8M = 128,
};

#include "backends/cpu/kernels/matmul_int8_tiles.h"

struct row_chunk {
    _Alignas(LINE) int8_t q[CHUNK];
    float d[SUBS];
    float d_sum[HALVES];   /* d times the sum of each 32 activations, or of each 16 with two scales */
    int32_t start[HALVES]; /* -offset times the same sums */
};

/* --- Activations ------------------------------------------------------------------------------------------------- */

/* The sums of each 16 of 256 activations, as 16 integers. */
MR_ALWAYS_INLINE __m512i sums_of_16(const int8_t *q) {
    __m512i t[4];
    for (int i = 0; i < 4; i++)
        t[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(q + i * 64));
    /* 128-bit lane l of t[i] holds four parts of sum 4i + l: a transposition of 4 by 4 adds them. */
    __m512i t01 = _mm512_add_epi32(_mm512_unpacklo_epi32(t[0], t[1]), _mm512_unpackhi_epi32(t[0], t[1]));
    __m512i t23 = _mm512_add_epi32(_mm512_unpacklo_epi32(t[2], t[3]), _mm512_unpackhi_epi32(t[2], t[3]));
    __m512i sums = _mm512_add_epi32(_mm512_unpacklo_epi64(t01, t23), _mm512_unpackhi_epi64(t01, t23));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums);
}

/* Start value of an integer sum, which cancels the offset of the weights: -offset times the sum of the activations. */
MR_ALWAYS_INLINE __m512i start_of(const format f, __m512i sum) {
    return _mm512_mullo_epi32(sum, _mm512_set1_epi32(-f.offset)); /* a power of two: compilers make a shift of it */
}

/* Lays out start and d_sum for 16 halves (16 activations each). d: the scales of these 256 activations. */
MR_ALWAYS_INLINE void lay_out_halves(const format f, row_chunk *out, int half, __m256 d) {
    __m512i sum = sums_of_16(out->q + half * 16);
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    if (f.offset)
        _mm512_storeu_si512(out->start + half, start_of(f, sum));
    if (f.n_mins == 2) {
        __m512 d2 = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(d));
        _mm512_storeu_ps(out->d_sum + half, _mm512_mul_ps(d2, _mm512_cvtepi32_ps(sum)));
    }
}

MR_ALWAYS_INLINE void lay_out_row(const format f, const mr_matmul_args *args, int32_t row, int32_t k, int32_t n_k,
                                  row_chunk *out) {
    const int32_t n_subs = n_k / 32;
    a8_row a = a8_row_at(matmul_a_row(args, row), args->k);
    __mmask16 mask = (__mmask16)((1u << n_subs) - 1);
    for (int32_t i = 0; i < n_subs; i += 2) {
        __mmask64 bytes = i + 1 < n_subs ? ~(__mmask64)0 : 0xffffffffu;
        _mm512_store_si512(out->q + i * 32, _mm512_maskz_loadu_epi8(bytes, a.q + k + i * 32));
    }
    __m512 d = _mm512_maskz_loadu_ps(mask, a.d + k / 32);
    __m512i sum = _mm512_maskz_loadu_epi32(mask, a.sum + k / 32);
    _mm512_store_ps(out->d, d);
    if (f.n_mins == 1)
        _mm512_store_ps(out->d_sum, _mm512_mul_ps(d, _mm512_cvtepi32_ps(sum)));
    if (f.n_sums == 1) {
        if (f.offset)
            _mm512_store_si512(out->start, start_of(f, sum));
        return;
    }
    for (int32_t i = n_subs; i < (n_subs + 7) / 8 * 8; i++) /* zeros up to 256 k, which sums_of_16 reads */
        _mm256_store_si256((void *)(out->q + i * 32), _mm256_setzero_si256());
    lay_out_halves(f, out, 0, _mm512_castps512_ps256(d));
    if (n_subs > 8)
        lay_out_halves(f, out, 16, _mm512_extractf32x8_ps(d, 1));
}

/* --- Tiles ------------------------------------------------------------------------------------------------------- */

/* Four activations, the same for all lanes. */
MR_ALWAYS_INLINE __m512i broadcast_group(const int8_t *q) {
    int32_t v;
    memcpy(&v, q, 4);
    return _mm512_set1_epi32(v);
}

/* Row r of a tile: a##r and b##r are its float sums of the two panels, s##r and u##r the present integer sums. n_rows
 * and r are constants. */
#define OPEN(r)                                                                                                        \
    __m512 a##r = _mm512_load_ps(sums[r < n_rows ? r : 0][0]), b##r = _mm512_load_ps(sums[r < n_rows ? r : 0][1]);
#define START(r)                                                                                                       \
    __m512i s##r = f.offset ? _mm512_set1_epi32(rows[r < n_rows ? r : 0].start[at]) : _mm512_setzero_si512(),          \
            u##r = s##r;
#define ADD_GROUP(r)                                                                                                   \
    if (r < n_rows) {                                                                                                  \
        __m512i x = broadcast_group(rows[r].q + j * 32 + g * 4);                                                       \
        s##r = _mm512_dpbusd_epi32(s##r, w0, x);                                                                       \
        u##r = _mm512_dpbusd_epi32(u##r, w1, x);                                                                       \
    }
/* acc = fma(sum, scale * d, acc) */
#define ADD_PRODUCT(r)                                                                                                 \
    if (r < n_rows) {                                                                                                  \
        __m512 d = _mm512_set1_ps(rows[r].d[j]);                                                                       \
        a##r = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s##r), _mm512_mul_ps(scale0, d), a##r);                              \
        b##r = _mm512_fmadd_ps(_mm512_cvtepi32_ps(u##r), _mm512_mul_ps(scale1, d), b##r);                              \
    }
/* acc = fma(minimum, d times the sum of the activations, acc) */
#define ADD_MINIMUM(r)                                                                                                 \
    if (r < n_rows) {                                                                                                  \
        __m512 d_sum = _mm512_set1_ps(rows[r].d_sum[j * f.n_mins + h]);                                                \
        a##r = _mm512_fmadd_ps(min0, d_sum, a##r);                                                                     \
        b##r = _mm512_fmadd_ps(min1, d_sum, b##r);                                                                     \
    }
#define CLOSE(r)                                                                                                       \
    if (r < n_rows) {                                                                                                  \
        _mm512_store_ps(sums[r][0], a##r);                                                                             \
        _mm512_store_ps(sums[r][1], b##r);                                                                             \
    }

/* Prefetches from both panels what stands NEAR_BYTES behind sub-block j. One row of a format without decoding consumes
 * lines so fast that the lines of the next chunk, 8 KiB away for Q8_0, come too early: on a Zen 4 core they gave 0.72
 * of the read loop, NEAR_BYTES gives 0.90. Formats that decode are the faster the farther they ask. */
MR_ALWAYS_INLINE void ask_near(const format f, const tile *t, int32_t j) {
    const int32_t bytes = f.block_bytes / (f.block_k / 32), first = share_of(j * bytes, LINE);
    for (int32_t i = first; i * LINE < (j + 1) * bytes; i++)
        for (int p = 0; p < TILE_PANELS; p++)
            __builtin_prefetch(t->w[p] + NEAR_BYTES + i * LINE, 0, 2);
}

/* Continues the sums of n_rows rows and two panels over the chunk. from and n_rows are constants. */
MR_ALWAYS_INLINE void run_tile(const format f, const tile *t, weight_source from, int n_rows) {
    const row_chunk *rows = t->rows;
    tile_sums *sums = t->sums;
    EACH_ROW(OPEN)
    for (int32_t j = 0; j < t->n_k / 32; j++) {
        if (f.is_plain && from == PANELS && n_rows == 1)
            ask_near(f, t, j);
        else
            ask_ahead(t, j);
        UNROLL
        for (int h = 0; h < f.n_sums; h++) { /* the k of one scale: half of the 32 k, or all */
            const int32_t at = j * f.n_sums + h;
            EACH_ROW(START)
            UNROLL
            for (int i = 0; i < 8 / f.n_sums; i++) {
                const int g = h * 8 / f.n_sums + i;
                const v64 w0 = group_of(f, t, from, 0, j, g), w1 = group_of(f, t, from, 1, j, g);
                EACH_ROW(ADD_GROUP)
            }
            const v16 scale0 = scale_of(f, t, from, 0, j, h), scale1 = scale_of(f, t, from, 1, j, h);
            EACH_ROW(ADD_PRODUCT)
            if (h < f.n_mins) {
                const v16 min0 = min_of(f, t, from, 0, j, h), min1 = min_of(f, t, from, 1, j, h);
                EACH_ROW(ADD_MINIMUM)
            }
        }
    }
    EACH_ROW(CLOSE)
}

/* The same with factors. x##r and y##r are the sums of 32 k: the two integer sums times their factors, exact. a##r and
 * b##r are the sums of a block, which its scale then multiplies. */
#define OPEN_BLOCK(r) __m512 a##r = _mm512_setzero_ps(), b##r = a##r;
#define OPEN_SUB(r) __m512 x##r = _mm512_setzero_ps(), y##r = x##r; /* gcc at -O1 wants values */
#define WEIGH(r)                                                                                                       \
    if (r < n_rows) {                                                                                                  \
        const __m512 s = _mm512_cvtepi32_ps(s##r), u = _mm512_cvtepi32_ps(u##r);                                       \
        x##r = h == 0 ? _mm512_mul_ps(s, factor0) : _mm512_fmadd_ps(s, factor0, x##r);                                 \
        y##r = h == 0 ? _mm512_mul_ps(u, factor1) : _mm512_fmadd_ps(u, factor1, y##r);                                 \
    }
#define ADD_SUB(r)                                                                                                     \
    if (r < n_rows) {                                                                                                  \
        __m512 d = _mm512_set1_ps(rows[r].d[j]);                                                                       \
        a##r = _mm512_fmadd_ps(x##r, d, a##r);                                                                         \
        b##r = _mm512_fmadd_ps(y##r, d, b##r);                                                                         \
    }
#define ADD_BLOCK(r)                                                                                                   \
    if (r < n_rows) {                                                                                                  \
        _mm512_store_ps(sums[r][0], _mm512_fmadd_ps(a##r, scale0, _mm512_load_ps(sums[r][0])));                        \
        _mm512_store_ps(sums[r][1], _mm512_fmadd_ps(b##r, scale1, _mm512_load_ps(sums[r][1])));                        \
    }

MR_ALWAYS_INLINE void run_factor_tile(const format f, const tile *t, weight_source from, int n_rows) {
    const row_chunk *rows = t->rows;
    tile_sums *sums = t->sums;
    for (int32_t block = 0; block < t->n_k / 32; block += f.block_k / 32) {
        EACH_ROW(OPEN_BLOCK)
        for (int32_t j = block; j < block + f.block_k / 32; j++) {
            ask_ahead(t, j);
            EACH_ROW(OPEN_SUB)
            UNROLL
            for (int h = 0; h < 2; h++) {
                const int32_t at = 2 * j + h;
                EACH_ROW(START)
                UNROLL
                for (int g = 4 * h; g < 4 * h + 4; g++) {
                    const v64 w0 = group_of(f, t, from, 0, j, g), w1 = group_of(f, t, from, 1, j, g);
                    EACH_ROW(ADD_GROUP)
                }
                const v16 factor0 = factor_of(f, t, from, 0, j, h), factor1 = factor_of(f, t, from, 1, j, h);
                EACH_ROW(WEIGH)
            }
            EACH_ROW(ADD_SUB)
        }
        const v16 scale0 = scale_of(f, t, from, 0, block, 0), scale1 = scale_of(f, t, from, 1, block, 0);
        EACH_ROW(ADD_BLOCK)
    }
}

MR_ALWAYS_INLINE void run_rows(const format f, const tile *t, weight_source from, int n_rows) {
    if (f.factors)
        run_factor_tile(f, t, from, n_rows);
    else
        run_tile(f, t, from, n_rows);
}

MR_ALWAYS_INLINE int32_t tile_rows(const format f) {
    return f.factors ? TILE_ROWS_FACTORS : TILE_ROWS;
}

/* Calls run_rows with a constant number of rows. If a chunk has several tiles, none has less than 4 rows, or 3 with
 * factors. */
MR_ALWAYS_INLINE void run_tile_of(const format f, const tile *t, weight_source from, int32_t n_rows) {
    const bool is_only = from == PANELS;
    if (n_rows == 7 && (is_only || !f.factors))
        run_rows(f, t, from, 7);
    else if (n_rows == 6 && (is_only || !f.factors))
        run_rows(f, t, from, 6);
    else if (n_rows == 5 && (is_only || !f.factors))
        run_rows(f, t, from, 5);
    else if (n_rows == 4 || (!is_only && !f.factors))
        run_rows(f, t, from, 4);
    else if (n_rows == 3 || !is_only)
        run_rows(f, t, from, 3);
    else if (n_rows == 2)
        run_rows(f, t, from, 2);
    else
        run_rows(f, t, from, 1);
}

#include "backends/cpu/kernels/matmul_loops.h"

#endif
