/* backends/cpu/kernels/vec_avx2.h - the 16 virtual lanes of rule S1 as two 256-bit registers, lanes 0..7 and 8..15.
 * The names are those of vec_avx512.h. Loads and stores need no alignment. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_VEC_AVX2_H
#define MR_BACKENDS_CPU_KERNELS_VEC_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define MR_ALWAYS_INLINE static inline __attribute__((always_inline))

typedef struct v16 {
    __m256 lo, hi;
} v16; /* 16 floats */
typedef struct v16i {
    __m256i lo, hi;
} v16i;           /* 16 int32 */
typedef v16 v16m; /* 16 truth values: all bits of a lane or none */
typedef v16i v64; /* 64 bytes: 4 of each lane */

MR_ALWAYS_INLINE v16 v16_set1(float x) {
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
MR_ALWAYS_INLINE v16 v16_load(const float *p) {
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
MR_ALWAYS_INLINE void v16_store(float *p, v16 x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
MR_ALWAYS_INLINE v16m v16m_first(int32_t n) { /* lanes below n, 0 <= n <= 16 */
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (v16m){_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane)),
                  _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane))};
}
/* Loads the first n elements, 1 <= n <= 16. The other lanes are +0, and their memory is not read. */
MR_ALWAYS_INLINE v16 v16_load_n(const float *p, int32_t n) {
    v16m m = v16m_first(n);
    return (v16){_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
                 _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}
MR_ALWAYS_INLINE void v16_store_n(float *p, v16 x, int32_t n) {
    v16m m = v16m_first(n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), x.lo);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), x.hi);
}
MR_ALWAYS_INLINE v16 v16_load_f16(const uint16_t *p) {
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
MR_ALWAYS_INLINE v16 v16_from_i32(v16i a) {
    return (v16){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
MR_ALWAYS_INLINE v16 v16_load_i8(const int8_t *p) {
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))))};
}
MR_ALWAYS_INLINE v16i v16i_load_u8(const uint8_t *p) {
    return (v16i){_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                  _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))};
}
MR_ALWAYS_INLINE v16 v16_load_u8(const uint8_t *p) {
    return v16_from_i32(v16i_load_u8(p));
}
MR_ALWAYS_INLINE __m256 power_8(__m256i e) {
    e = _mm256_max_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), _mm256_setzero_si256());
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
/* 2^(e - 128), and 0 for e < 2: the exponent field is e - 1. */
MR_ALWAYS_INLINE v16 v16_load_power(const uint8_t *e) {
    v16i x = v16i_load_u8(e);
    return (v16){power_8(x.lo), power_8(x.hi)};
}
MR_ALWAYS_INLINE v16 v16_set1_f16(uint16_t x) {
    __m256 all = _mm256_cvtph_ps(_mm_set1_epi16((short)x));
    return (v16){all, all};
}
MR_ALWAYS_INLINE void v16_store_f16(uint16_t *p, v16 x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
}

MR_ALWAYS_INLINE v16 v16_add(v16 a, v16 b) {
    return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
MR_ALWAYS_INLINE v16 v16_sub(v16 a, v16 b) {
    return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
MR_ALWAYS_INLINE v16 v16_mul(v16 a, v16 b) {
    return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
MR_ALWAYS_INLINE v16 v16_div(v16 a, v16 b) {
    return (v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
MR_ALWAYS_INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
MR_ALWAYS_INLINE v16 v16_fmaddsub(v16 a, v16 b, v16 c) { /* even lanes a b - c, odd + c */
    return (v16){_mm256_fmaddsub_ps(a.lo, b.lo, c.lo), _mm256_fmaddsub_ps(a.hi, b.hi, c.hi)};
}
MR_ALWAYS_INLINE v16 v16_max(v16 a, v16 b) { /* a > b ? a : b */
    return (v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
MR_ALWAYS_INLINE v16 v16_min(v16 a, v16 b) { /* a < b ? a : b */
    return (v16){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
MR_ALWAYS_INLINE v16 v16_neg(v16 a) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
MR_ALWAYS_INLINE v16 v16_dup_even(v16 a) {
    return (v16){_mm256_moveldup_ps(a.lo), _mm256_moveldup_ps(a.hi)};
}
MR_ALWAYS_INLINE v16 v16_dup_odd(v16 a) {
    return (v16){_mm256_movehdup_ps(a.lo), _mm256_movehdup_ps(a.hi)};
}

MR_ALWAYS_INLINE v16m v16_less(v16 a, v16 b) {
    return (v16m){_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
MR_ALWAYS_INLINE v16m v16_is_nan(v16 a) {
    return (v16m){_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}
MR_ALWAYS_INLINE v16 v16_select(v16m m, v16 yes, v16 no) {
    return (v16){_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}

MR_ALWAYS_INLINE v16i v16_bits(v16 a) {
    return (v16i){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
MR_ALWAYS_INLINE v16 v16_from_bits(v16i a) {
    return (v16){_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
MR_ALWAYS_INLINE v16i v16i_set1(int32_t x) {
    return (v16i){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
MR_ALWAYS_INLINE v16i v16i_add(v16i a, v16i b) {
    return (v16i){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
MR_ALWAYS_INLINE v16i v16i_max(v16i a, v16i b) {
    return (v16i){_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
MR_ALWAYS_INLINE v16 v16_zero_if(v16m m, v16 x) {
    return (v16){_mm256_andnot_ps(m.lo, x.lo), _mm256_andnot_ps(m.hi, x.hi)};
}
/* p * 2^n by adding n to the exponent field. The result must be normal; a NaN in p stays NaN. n = shifted -
 * MR_EXPF_MAGIC stands in the low bits of shifted. */
MR_ALWAYS_INLINE v16 v16_times_2n(v16 p, v16 shifted, v16 n) {
    (void)n;
    v16i up = {_mm256_slli_epi32(v16_bits(shifted).lo, 23), _mm256_slli_epi32(v16_bits(shifted).hi, 23)};
    return v16_select(v16_is_nan(p), p, v16_from_bits(v16i_add(v16_bits(p), up)));
}
MR_ALWAYS_INLINE v16i v16_abs_bits(v16 a) {
    __m256i mask = _mm256_set1_epi32(0x7fffffff);
    v16i u = v16_bits(a);
    return (v16i){_mm256_and_si256(u.lo, mask), _mm256_and_si256(u.hi, mask)};
}
MR_ALWAYS_INLINE v16i v16_round(v16 a) { /* nearest, ties to even */
    return (v16i){_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
MR_ALWAYS_INLINE int32_t v16i_reduce_add(v16i a) {
    __m256i t = _mm256_add_epi32(a.lo, a.hi);
    __m128i u = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
    u = _mm_add_epi32(u, _mm_shuffle_epi32(u, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(u, _mm_shuffle_epi32(u, 0xb1)));
}
MR_ALWAYS_INLINE int32_t v16i_reduce_max(v16i a) {
    __m256i t = _mm256_max_epi32(a.lo, a.hi);
    __m128i u = _mm_max_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
    u = _mm_max_epi32(u, _mm_shuffle_epi32(u, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(u, _mm_shuffle_epi32(u, 0xb1)));
}
MR_ALWAYS_INLINE void v16i_store_i8(int8_t *p, v16i a) {
    __m256i t = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1)));
}

/* The tree of rule S1. */
MR_ALWAYS_INLINE float v16_tree(v16 a) {
    __m256 t8 = _mm256_add_ps(a.lo, a.hi);
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
MR_ALWAYS_INLINE float v16_reduce_max(v16 a) { /* no NaN among them */
    __m256 t8 = _mm256_max_ps(a.lo, a.hi);
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}

MR_ALWAYS_INLINE v64 v64_load(const void *p) {
    return (v64){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
MR_ALWAYS_INLINE v64 v64_minus(v64 x, int n) {
    __m256i all = _mm256_set1_epi8((char)n);
    return (v64){_mm256_sub_epi8(x.lo, all), _mm256_sub_epi8(x.hi, all)};
}
MR_ALWAYS_INLINE v64 v64_and(v64 x, int mask) {
    __m256i all = _mm256_set1_epi8((char)mask);
    return (v64){_mm256_and_si256(x.lo, all), _mm256_and_si256(x.hi, all)};
}
MR_ALWAYS_INLINE v64 v64_or(v64 a, v64 b) {
    return (v64){_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
/* Shifts of 16-bit words: bits also move between the two bytes of a word. */
MR_ALWAYS_INLINE v64 v64_left(v64 x, int n) {
    return (v64){_mm256_slli_epi16(x.lo, n), _mm256_slli_epi16(x.hi, n)};
}
MR_ALWAYS_INLINE v64 v64_right(v64 x, int n) {
    return (v64){_mm256_srli_epi16(x.lo, n), _mm256_srli_epi16(x.hi, n)};
}
MR_ALWAYS_INLINE v64 v64_nibbles(v64 x, bool high) {
    return v64_and(high ? v64_right(x, 4) : x, 15);
}
MR_ALWAYS_INLINE v64 v64_look_up(const int8_t table[16], int plus, v64 x) {
    __m128i values = _mm_add_epi8(_mm_loadu_si128((const void *)table), _mm_set1_epi8((char)plus));
    __m256i both = _mm256_broadcastsi128_si256(values);
    return (v64){_mm256_shuffle_epi8(both, x.lo), _mm256_shuffle_epi8(both, x.hi)};
}
MR_ALWAYS_INLINE v64 v64_with_bit_4(v64 x, v64 bits, int n) {
    return v64_or(x, v64_and(n < 4 ? v64_left(bits, 4 - n) : v64_right(bits, n - 4), 16));
}
MR_ALWAYS_INLINE v64 v64_top_bits(v64 a, v64 b, v64 c) {
    return v64_or(v64_or(v64_and(v64_right(a, 2), 0x30), v64_and(v64_right(b, 4), 0x0c)), v64_and(v64_right(c, 6), 3));
}

#endif
