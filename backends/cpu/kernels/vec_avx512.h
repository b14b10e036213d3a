/* backends/cpu/kernels/vec_avx512.h - the 16 virtual lanes of rule S1 as one 512-bit register.
 * vec_avx2.h gives the same names for two 256-bit registers, vec_neon.h for four 128-bit ones; the
 * bodies *_vec.h are written on these names alone.
 * Loads and stores need no alignment. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_VEC_AVX512_H
#define MR_BACKENDS_CPU_KERNELS_VEC_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define MR_ALWAYS_INLINE static inline __attribute__((always_inline))

typedef __m512 v16;     /* 16 floats */
typedef __m512i v16i;   /* 16 int32 */
typedef __mmask16 v16m; /* 16 truth values */
typedef __m512i v64;    /* 64 bytes: 4 of each lane */

MR_ALWAYS_INLINE v16 v16_set1(float x) {
    return _mm512_set1_ps(x);
}
MR_ALWAYS_INLINE v16 v16_load(const float *p) {
    return _mm512_loadu_ps(p);
}
MR_ALWAYS_INLINE void v16_store(float *p, v16 x) {
    _mm512_storeu_ps(p, x);
}
MR_ALWAYS_INLINE v16m v16m_first(int32_t n) {
    return (v16m)((1u << n) - 1u);
} /* lanes below n, 0 <= n <= 16 */
/* Loads the first n elements, 1 <= n <= 16. The other lanes are +0, and their memory is not read. */
MR_ALWAYS_INLINE v16 v16_load_n(const float *p, int32_t n) {
    return _mm512_maskz_loadu_ps(v16m_first(n), p);
}
MR_ALWAYS_INLINE void v16_store_n(float *p, v16 x, int32_t n) {
    _mm512_mask_storeu_ps(p, v16m_first(n), x);
}
MR_ALWAYS_INLINE v16 v16_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
MR_ALWAYS_INLINE v16 v16_from_i32(v16i a) {
    return _mm512_cvtepi32_ps(a);
}
MR_ALWAYS_INLINE v16 v16_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
MR_ALWAYS_INLINE v16 v16_load_u8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* 2^(e - 128), and 0 for e < 2: the exponent field is e - 1. */
MR_ALWAYS_INLINE v16 v16_load_power(const uint8_t *e) {
    __m512i up = _mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)e)), _mm512_set1_epi32(1));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_max_epi32(up, _mm512_setzero_si512()), 23));
}
MR_ALWAYS_INLINE v16 v16_set1_f16(uint16_t x) {
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)x));
}
/* The odd or the even elements of 32 bf16. */
MR_ALWAYS_INLINE v16 v16_load_bf16_odd(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000u)));
}
MR_ALWAYS_INLINE v16 v16_load_bf16_even(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
MR_ALWAYS_INLINE void v16_store_f16(uint16_t *p, v16 x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

MR_ALWAYS_INLINE v16 v16_add(v16 a, v16 b) {
    return _mm512_add_ps(a, b);
}
MR_ALWAYS_INLINE v16 v16_sub(v16 a, v16 b) {
    return _mm512_sub_ps(a, b);
}
MR_ALWAYS_INLINE v16 v16_mul(v16 a, v16 b) {
    return _mm512_mul_ps(a, b);
}
MR_ALWAYS_INLINE v16 v16_div(v16 a, v16 b) {
    return _mm512_div_ps(a, b);
}
MR_ALWAYS_INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
    return _mm512_fmadd_ps(a, b, c);
}
MR_ALWAYS_INLINE v16 v16_fmaddsub(v16 a, v16 b, v16 c) {
    return _mm512_fmaddsub_ps(a, b, c);
} /* even lanes a b - c, odd + c */
MR_ALWAYS_INLINE v16 v16_max(v16 a, v16 b) {
    return _mm512_max_ps(a, b);
} /* a > b ? a : b */
MR_ALWAYS_INLINE v16 v16_min(v16 a, v16 b) {
    return _mm512_min_ps(a, b);
} /* a < b ? a : b */
MR_ALWAYS_INLINE v16 v16_neg(v16 a) {
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
MR_ALWAYS_INLINE v16 v16_dup_even(v16 a) {
    return _mm512_moveldup_ps(a);
}
MR_ALWAYS_INLINE v16 v16_dup_odd(v16 a) {
    return _mm512_movehdup_ps(a);
}

MR_ALWAYS_INLINE v16m v16_less(v16 a, v16 b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
MR_ALWAYS_INLINE v16m v16_is_nan(v16 a) {
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
MR_ALWAYS_INLINE v16 v16_select(v16m m, v16 yes, v16 no) {
    return _mm512_mask_blend_ps(m, no, yes);
}

MR_ALWAYS_INLINE v16 v16_zero_if(v16m m, v16 x) {
    return _mm512_maskz_mov_ps((v16m)~m, x);
}
/* p * 2^n. The result must be normal; a NaN in p stays NaN. n = shifted - MR_EXPF_MAGIC. */
MR_ALWAYS_INLINE v16 v16_times_2n(v16 p, v16 shifted, v16 n) {
    (void)shifted;
    return _mm512_scalef_ps(p, n);
}

MR_ALWAYS_INLINE v16i v16_bits(v16 a) {
    return _mm512_castps_si512(a);
}
MR_ALWAYS_INLINE v16 v16_from_bits(v16i a) {
    return _mm512_castsi512_ps(a);
}
MR_ALWAYS_INLINE v16i v16i_add(v16i a, v16i b) {
    return _mm512_add_epi32(a, b);
}
MR_ALWAYS_INLINE v16i v16i_max(v16i a, v16i b) {
    return _mm512_max_epi32(a, b);
}
MR_ALWAYS_INLINE v16i v16_abs_bits(v16 a) {
    return _mm512_and_si512(v16_bits(a), _mm512_set1_epi32(0x7fffffff));
}
MR_ALWAYS_INLINE v16i v16_round(v16 a) {
    return _mm512_cvtps_epi32(a);
} /* nearest, ties to even */
MR_ALWAYS_INLINE int32_t v16i_reduce_add(v16i a) {
    return _mm512_reduce_add_epi32(a);
}
MR_ALWAYS_INLINE int32_t v16i_reduce_max(v16i a) {
    return _mm512_reduce_max_epi32(a);
}
MR_ALWAYS_INLINE void v16i_store_i8(int8_t *p, v16i a) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a));
}

/* Adds 8 lanes: the last three levels of the tree of rule S1. */
MR_ALWAYS_INLINE float v8_tree(__m256 a) {
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
MR_ALWAYS_INLINE float v16_tree(v16 a) {
    return v8_tree(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
}
MR_ALWAYS_INLINE float v16_reduce_max(v16 a) {
    return _mm512_reduce_max_ps(a);
} /* no NaN among them */

MR_ALWAYS_INLINE v64 v64_load(const void *p) {
    return _mm512_loadu_si512(p);
}
MR_ALWAYS_INLINE void v64_store(void *p, v64 x) {
    _mm512_storeu_si512(p, x);
}
MR_ALWAYS_INLINE v64 v64_minus(v64 x, int n) {
    return _mm512_sub_epi8(x, _mm512_set1_epi8((char)n));
}
MR_ALWAYS_INLINE v64 v64_and(v64 x, int mask) {
    return _mm512_and_si512(x, _mm512_set1_epi8((char)mask));
}
/* The low or the high four bits of each byte. */
MR_ALWAYS_INLINE v64 v64_nibbles(v64 x, bool high) {
    return v64_and(high ? _mm512_srli_epi16(x, 4) : x, 15);
}
/* table[x] + plus, for x in 0..15 */
MR_ALWAYS_INLINE v64 v64_look_up(const int8_t table[16], int plus, v64 x) {
    __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
    return _mm512_shuffle_epi8(_mm512_add_epi8(values, _mm512_set1_epi8((char)plus)), x);
}
/* x with bit n of each byte of bits as its bit 4 */
MR_ALWAYS_INLINE v64 v64_with_bit_4(v64 x, v64 bits, int n) {
    __m512i moved = n < 4 ? _mm512_slli_epi16(bits, 4 - n) : _mm512_srli_epi16(bits, n - 4);
    return _mm512_ternarylogic_epi32(moved, _mm512_set1_epi8(16), x, 0xea); /* (moved & 16) | x */
}
/* The top two bits of the bytes of a, b and c as one value. */
MR_ALWAYS_INLINE v64 v64_top_bits(v64 a, v64 b, v64 c) {
    /* Selects: a bit of the mask takes the second operand, else the third. */
    __m512i ab =
        _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x30), _mm512_srli_epi16(a, 2), _mm512_srli_epi16(b, 4), 0xca);
    return v64_and(_mm512_ternarylogic_epi32(_mm512_set1_epi8(0x3c), ab, _mm512_srli_epi16(c, 6), 0xca), 63);
}

#endif
