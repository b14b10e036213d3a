/* backends/cpu/kernels/attention_int8_avx2.h - the integer sums of rule T8 (attention_int8_vec.h) on 256-bit registers.
 * With AVX-VNNI (MR_VNNI), x is 128 hi + lo as in attention_int8_avx512.h. Without it, VPMADDUBSW would take three
 * instructions for each half of x. So x stays a word of 16 bits, bytes become words, and VPMADDWD adds two products.
 * Include it once for each level, after MR_VNNI is defined or not. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ATTENTION_INT8_AVX2_H
#define MR_BACKENDS_CPU_KERNELS_ATTENTION_INT8_AVX2_H

#include <string.h>

#include "backends/cpu/kernels/vec_avx2.h"

enum { INT8_QUERIES = 2, SCORE_VECTORS = 1, VALUE_QUERIES = 2, VALUE_VECTORS = 1 };
#define INT8_SCORE_SHAPES SHAPE(1) SHAPE(2)
#define INT8_VALUE_SHAPES SHAPE(1) SHAPE(2)
#define X_AT(i, g) (4 * (i) + (g))

#ifdef MR_VNNI

enum { INT8_OFFSET = 128, X_GROUP = 4 };

typedef struct isum {
    v16i hi, lo;
} isum;
typedef v64 bytes64;

MR_ALWAYS_INLINE isum isum_start(int32_t x) {
    return (isum){v16i_set1(0), v16i_set1(x)};
}
MR_ALWAYS_INLINE v16i isum_total(isum s) {
    return (v16i){_mm256_add_epi32(_mm256_slli_epi32(s.hi.lo, 7), s.lo.lo),
                  _mm256_add_epi32(_mm256_slli_epi32(s.hi.hi, 7), s.lo.hi)};
}
MR_ALWAYS_INLINE bytes64 values_load(const char *p) {
    return v64_load(p);
}
MR_ALWAYS_INLINE bytes64 keys_load(const char *p) {
    v64 k = v64_load(p);
    __m256i offset = _mm256_set1_epi8((char)0x80);
    return (bytes64){_mm256_xor_si256(k.lo, offset), _mm256_xor_si256(k.hi, offset)};
}
MR_ALWAYS_INLINE __m256i four_x(const uint8_t *x) {
    int32_t word;
    memcpy(&word, x, 4);
    return _mm256_set1_epi32(word);
}
MR_ALWAYS_INLINE isum isum_add_keys(isum s, bytes64 k, const uint8_t *x, int lo_at) {
    __m256i hi = four_x(x), lo = four_x(x + lo_at);
    return (isum){{_mm256_dpbusd_avx_epi32(s.hi.lo, k.lo, hi), _mm256_dpbusd_avx_epi32(s.hi.hi, k.hi, hi)},
                  {_mm256_dpbusd_avx_epi32(s.lo.lo, k.lo, lo), _mm256_dpbusd_avx_epi32(s.lo.hi, k.hi, lo)}};
}
MR_ALWAYS_INLINE isum isum_add_values(isum s, bytes64 v, const uint8_t *x, int lo_at) {
    __m256i hi = four_x(x), lo = four_x(x + lo_at);
    return (isum){{_mm256_dpbusd_avx_epi32(s.hi.lo, hi, v.lo), _mm256_dpbusd_avx_epi32(s.hi.hi, hi, v.hi)},
                  {_mm256_dpbusd_avx_epi32(s.lo.lo, lo, v.lo), _mm256_dpbusd_avx_epi32(s.lo.hi, lo, v.hi)}};
}

/* Stores n times 16 x: their upper parts, then their lower parts. */
MR_ALWAYS_INLINE void x_store(uint8_t *out, const v16i *x, int n) {
    __m256i low = _mm256_set1_epi32(127);
    int8_t *hi = (int8_t *)out, *lo = hi + 16 * n;
    for (int i = 0; i < n; i++, hi += 16, lo += 16) {
        v16i_store_i8(hi, (v16i){_mm256_srai_epi32(x[i].lo, 7), _mm256_srai_epi32(x[i].hi, 7)});
        v16i_store_i8(lo, (v16i){_mm256_and_si256(x[i].lo, low), _mm256_and_si256(x[i].hi, low)});
    }
}

#else

enum { INT8_OFFSET = 0, X_GROUP = 8 };

typedef struct isum {
    __m256i pair[4]; /* the sum of a lane is that of two neighbours */
} isum;
typedef struct bytes64 {
    __m256i word[4]; /* 4 lanes each */
} bytes64;

MR_ALWAYS_INLINE isum isum_start(int32_t x) {
    (void)x; /* there is no offset */
    __m256i zero = _mm256_setzero_si256();
    return (isum){{zero, zero, zero, zero}};
}
MR_ALWAYS_INLINE v16i isum_total(isum s) {
    return (v16i){_mm256_permute4x64_epi64(_mm256_hadd_epi32(s.pair[0], s.pair[1]), 0xd8),
                  _mm256_permute4x64_epi64(_mm256_hadd_epi32(s.pair[2], s.pair[3]), 0xd8)};
}
MR_ALWAYS_INLINE bytes64 values_load(const char *p) {
    bytes64 out;
    for (int i = 0; i < 4; i++)
        out.word[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p + i));
    return out;
}
MR_ALWAYS_INLINE bytes64 keys_load(const char *p) {
    return values_load(p);
}
MR_ALWAYS_INLINE isum isum_add_values(isum s, bytes64 b, const uint8_t *x, int lo_at) {
    (void)lo_at;
    int64_t words;
    memcpy(&words, x, 8);
    __m256i four = _mm256_set1_epi64x(words);
    for (int i = 0; i < 4; i++)
        s.pair[i] = _mm256_add_epi32(s.pair[i], _mm256_madd_epi16(b.word[i], four));
    return s;
}
MR_ALWAYS_INLINE isum isum_add_keys(isum s, bytes64 b, const uint8_t *x, int lo_at) {
    return isum_add_values(s, b, x, lo_at);
}

/* Stores n times 16 x. */
MR_ALWAYS_INLINE void x_store(uint8_t *out, const v16i *x, int n) {
    for (int i = 0; i < n; i++)
        _mm256_storeu_si256((__m256i *)(void *)out + i,
                            _mm256_permute4x64_epi64(_mm256_packs_epi32(x[i].lo, x[i].hi), 0xd8));
}

#endif

MR_ALWAYS_INLINE void x_store_32(uint8_t *out, const v16i x[2]) {
    x_store(out, x, 2);
}
MR_ALWAYS_INLINE void x_store_64(uint8_t *out, const v16i x[4]) {
    x_store(out, x, 4);
}

#endif
