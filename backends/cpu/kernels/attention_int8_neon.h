/* backends/cpu/kernels/attention_int8_neon.h - the integer sums of rule T8 (attention_int8_vec.h) on AArch64. x is
 * 128 hi + lo. With the dot product instructions (__ARM_FEATURE_DOTPROD), SDOT adds four products. Without them, two
 * 16-bit products of at most 127 * 128 are added before they are widened: exact.
 * Include it once for each level. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ATTENTION_INT8_NEON_H
#define MR_BACKENDS_CPU_KERNELS_ATTENTION_INT8_NEON_H

#include "backends/cpu/kernels/vec_neon.h"

enum { INT8_OFFSET = 0, INT8_QUERIES = 3, SCORE_VECTORS = 1, VALUE_QUERIES = 3, VALUE_VECTORS = 1, X_GROUP = 4 };
#define INT8_SCORE_SHAPES SHAPE(1) SHAPE(2) SHAPE(3)
#define INT8_VALUE_SHAPES SHAPE(1) SHAPE(2) SHAPE(3)
#define X_AT(i, g) (4 * (i) + (g))

typedef struct isum {
    v16i hi, lo;
} isum;
typedef v64 bytes64;

MR_ALWAYS_INLINE isum isum_start(int32_t x) {
    (void)x; /* there is no offset */
    v16i zero = v16_bits(v16_set1(0.0f));
    return (isum){zero, zero};
}
MR_ALWAYS_INLINE int32x4_t times_128(int32x4_t x) {
    return vshlq_n_s32(x, 7);
}
MR_ALWAYS_INLINE v16i isum_total(isum s) {
    v16i hi = FOUR_1(times_128, s.hi);
    return v16i_add(hi, s.lo);
}
MR_ALWAYS_INLINE bytes64 values_load(const char *p) {
    return v64_load((const uint8_t *)p);
}
MR_ALWAYS_INLINE bytes64 keys_load(const char *p) {
    return values_load(p);
}
/* sum += in each lane, the four values of the bytes times the four of x */
MR_ALWAYS_INLINE int32x4_t add_4(int32x4_t sum, uint8x16_t bytes, int8x16_t x) {
    int8x16_t v = vreinterpretq_s8_u8(bytes);
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sum, v, x);
#else
    int16x8_t lo = vmull_s8(vget_low_s8(v), vget_low_s8(x)), hi = vmull_high_s8(v, x);
    return vpadalq_s16(sum, vpaddq_s16(lo, hi));
#endif
}
MR_ALWAYS_INLINE v16i add_16(v16i sum, bytes64 b, const uint8_t *x) {
    int32_t word;
    memcpy(&word, x, 4);
    int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(word));
    return (v16i){add_4(sum.q0, b.q0, four), add_4(sum.q1, b.q1, four), add_4(sum.q2, b.q2, four),
                  add_4(sum.q3, b.q3, four)};
}
MR_ALWAYS_INLINE isum isum_add_values(isum s, bytes64 b, const uint8_t *x, int lo_at) {
    return (isum){add_16(s.hi, b, x), add_16(s.lo, b, x + lo_at)};
}
MR_ALWAYS_INLINE isum isum_add_keys(isum s, bytes64 b, const uint8_t *x, int lo_at) {
    return isum_add_values(s, b, x, lo_at);
}

MR_ALWAYS_INLINE int32x4_t upper_part(int32x4_t x) {
    return vshrq_n_s32(x, 7);
}
MR_ALWAYS_INLINE int32x4_t lower_part(int32x4_t x) {
    return vandq_s32(x, vdupq_n_s32(127));
}
/* Stores n times 16 x: their upper parts, then their lower parts. */
MR_ALWAYS_INLINE void x_store(uint8_t *out, const v16i *x, int n) {
    for (int i = 0; i < n; i++) {
        v16i hi = FOUR_1(upper_part, x[i]), lo = FOUR_1(lower_part, x[i]);
        v16i_store_i8((int8_t *)out + 16 * i, hi);
        v16i_store_i8((int8_t *)out + 16 * (n + i), lo);
    }
}
MR_ALWAYS_INLINE void x_store_32(uint8_t *out, const v16i x[2]) {
    x_store(out, x, 2);
}
MR_ALWAYS_INLINE void x_store_64(uint8_t *out, const v16i x[4]) {
    x_store(out, x, 4);
}

#endif
