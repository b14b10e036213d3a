/* backends/cpu/kernels/attention_int8_avx512.h - the integer sums of rule T8 (attention_int8_vec.h) with AVX-512 VNNI.
 * x is 128 hi + lo. VPDPBUSD adds four products of an unsigned and a signed byte. Keys become unsigned by an offset; hi
 * and lo of weights are unsigned as they are. 4 queries by 2 vectors of scores, or 6 by 2 of values, keep their sums in
 * registers.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ATTENTION_INT8_AVX512_H
#define MR_BACKENDS_CPU_KERNELS_ATTENTION_INT8_AVX512_H

#include <string.h>

#include "backends/cpu/kernels/vec_avx512.h"

enum { INT8_OFFSET = 128, INT8_QUERIES = 4, SCORE_VECTORS = 2, VALUE_QUERIES = 6, VALUE_VECTORS = 2, X_GROUP = 4 };
#define INT8_SCORE_SHAPES SHAPE(1) SHAPE(2) SHAPE(3) SHAPE(4)
#define INT8_VALUE_SHAPES SHAPE(1) SHAPE(2) SHAPE(3) SHAPE(4) SHAPE(5) SHAPE(6)

typedef struct isum {
    __m512i hi, lo;
} isum;
typedef __m512i bytes64;

MR_ALWAYS_INLINE isum isum_start(int32_t x) {
    return (isum){_mm512_setzero_si512(), _mm512_set1_epi32(x)};
}
MR_ALWAYS_INLINE v16i isum_total(isum s) {
    return _mm512_add_epi32(_mm512_slli_epi32(s.hi, 7), s.lo);
}
MR_ALWAYS_INLINE bytes64 keys_load(const char *p) {
    return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8((char)0x80));
}
MR_ALWAYS_INLINE bytes64 values_load(const char *p) {
    return _mm512_loadu_si512(p);
}
MR_ALWAYS_INLINE __m512i four_x(const uint8_t *x) {
    int32_t word;
    memcpy(&word, x, 4);
    return _mm512_set1_epi32(word);
}
MR_ALWAYS_INLINE isum isum_add_keys(isum s, bytes64 k, const uint8_t *x, int lo_at) {
    return (isum){_mm512_dpbusd_epi32(s.hi, k, four_x(x)), _mm512_dpbusd_epi32(s.lo, k, four_x(x + lo_at))};
}
MR_ALWAYS_INLINE isum isum_add_values(isum s, bytes64 v, const uint8_t *x, int lo_at) {
    return (isum){_mm512_dpbusd_epi32(s.hi, four_x(x), v), _mm512_dpbusd_epi32(s.lo, four_x(x + lo_at), v)};
}

MR_ALWAYS_INLINE void x_store_32(uint8_t *out, const v16i x[2]) {
    for (int i = 0; i < 2; i++) {
        v16i_store_i8((int8_t *)out + 16 * i, _mm512_srai_epi32(x[i], 7));
        v16i_store_i8((int8_t *)out + 32 + 16 * i, _mm512_and_si512(x[i], _mm512_set1_epi32(127)));
    }
}
/* Packing leaves the words of x[i] in every fourth place: the four x of block i and group g are word 4 g + i. */
MR_ALWAYS_INLINE void x_store_64(uint8_t *out, const v16i x[4]) {
    __m512i a = _mm512_packs_epi32(x[0], x[1]), b = _mm512_packs_epi32(x[2], x[3]), low = _mm512_set1_epi16(127);
    _mm512_store_si512(out, _mm512_packs_epi16(_mm512_srai_epi16(a, 7), _mm512_srai_epi16(b, 7)));
    _mm512_store_si512(out + 64, _mm512_packs_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low)));
}
#define X_AT(i, g) (4 * (g) + (i))

#endif
