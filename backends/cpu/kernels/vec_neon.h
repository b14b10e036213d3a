/* backends/cpu/kernels/vec_neon.h - the 16 virtual lanes of rule S1 as four 128-bit registers of AArch64.
 * The names are those of vec_avx512.h. Loads and stores need no alignment. FPCR.FZ (rule A2) flushes single precision
 * only: conversions take and give subnormal halves as values, as rule A3 wants it. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_VEC_NEON_H
#define MR_BACKENDS_CPU_KERNELS_VEC_NEON_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MR_ALWAYS_INLINE static inline __attribute__((always_inline))

typedef struct v16 {
    float32x4_t q0, q1, q2, q3;
} v16; /* 16 floats */
typedef struct v16i {
    int32x4_t q0, q1, q2, q3;
} v16i; /* 16 int32 */
typedef struct v16m {
    uint32x4_t q0, q1, q2, q3;
} v16m; /* 16 truth values: all bits of a lane or none */
typedef struct v64 {
    uint8x16_t q0, q1, q2, q3;
} v64; /* 64 bytes: 4 of each lane */

/* The results of an instruction on each of the four registers. */
#define FOUR_1(op, a)                                                                                                  \
    { op((a).q0), op((a).q1), op((a).q2), op((a).q3) }
#define FOUR_2(op, a, b)                                                                                               \
    { op((a).q0, (b).q0), op((a).q1, (b).q1), op((a).q2, (b).q2), op((a).q3, (b).q3) }
#define FOUR_3(op, a, b, c)                                                                                            \
    { op((a).q0, (b).q0, (c).q0), op((a).q1, (b).q1, (c).q1), op((a).q2, (b).q2, (c).q2), op((a).q3, (b).q3, (c).q3) }

MR_ALWAYS_INLINE v16 v16_set1(float x) {
    float32x4_t all = vdupq_n_f32(x);
    return (v16){all, all, all, all};
}
MR_ALWAYS_INLINE v16 v16_load(const float *p) {
    return (v16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
MR_ALWAYS_INLINE void v16_store(float *p, v16 x) {
    vst1q_f32(p, x.q0);
    vst1q_f32(p + 4, x.q1);
    vst1q_f32(p + 8, x.q2);
    vst1q_f32(p + 12, x.q3);
}
MR_ALWAYS_INLINE v16m v16m_first(int32_t n) { /* lanes below n, 0 <= n <= 16 */
    static const int32_t LANES[4] = {0, 1, 2, 3};
    int32x4_t lane = vld1q_s32(LANES);
    return (v16m){vcltq_s32(lane, vdupq_n_s32(n)), vcltq_s32(lane, vdupq_n_s32(n - 4)),
                  vcltq_s32(lane, vdupq_n_s32(n - 8)), vcltq_s32(lane, vdupq_n_s32(n - 12))};
}
/* Loads the first n elements, 1 <= n <= 16. The other lanes are +0, and their memory is not read. */
MR_ALWAYS_INLINE v16 v16_load_n(const float *p, int32_t n) {
    float x[16] = {0};
    if (n == 16)
        return v16_load(p);
    memcpy(x, p, (size_t)n * sizeof *x);
    return v16_load(x);
}
MR_ALWAYS_INLINE void v16_store_n(float *p, v16 x, int32_t n) {
    float lanes[16];
    if (n == 16) {
        v16_store(p, x);
        return;
    }
    v16_store(lanes, x);
    memcpy(p, lanes, (size_t)n * sizeof *lanes);
}
MR_ALWAYS_INLINE float32x4_t load_4_f16(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
MR_ALWAYS_INLINE v16 v16_load_f16(const uint16_t *p) {
    return (v16){load_4_f16(p), load_4_f16(p + 4), load_4_f16(p + 8), load_4_f16(p + 12)};
}
MR_ALWAYS_INLINE v16i v16i_from_i16(int16x8_t lo, int16x8_t hi) {
    return (v16i){vmovl_s16(vget_low_s16(lo)), vmovl_high_s16(lo), vmovl_s16(vget_low_s16(hi)), vmovl_high_s16(hi)};
}
MR_ALWAYS_INLINE v16 v16_from_i32(v16i a) {
    return (v16)FOUR_1(vcvtq_f32_s32, a);
}
MR_ALWAYS_INLINE v16 v16_load_i8(const int8_t *p) {
    int8x16_t x = vld1q_s8(p);
    return v16_from_i32(v16i_from_i16(vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x)));
}
MR_ALWAYS_INLINE v16 v16_load_u8(const uint8_t *p) {
    uint8x16_t x = vld1q_u8(p);
    return v16_from_i32(
        v16i_from_i16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x))), vreinterpretq_s16_u16(vmovl_high_u8(x))));
}
MR_ALWAYS_INLINE v16 v16_set1_f16(uint16_t x) {
    float32x4_t all = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x)));
    return (v16){all, all, all, all};
}
/* The odd or the even elements of 4 pairs of bf16. Each pair is one word; the odd element is the upper half. */
MR_ALWAYS_INLINE float32x4_t load_bf16_odd(const uint16_t *p) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u16(vld1q_u16(p)), vdupq_n_u32(0xffff0000u)));
}
MR_ALWAYS_INLINE float32x4_t load_bf16_even(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(vld1q_u16(p)), 16));
}
/* The odd or the even elements of 32 bf16. */
MR_ALWAYS_INLINE v16 v16_load_bf16_odd(const uint16_t *p) {
    return (v16){load_bf16_odd(p), load_bf16_odd(p + 8), load_bf16_odd(p + 16), load_bf16_odd(p + 24)};
}
MR_ALWAYS_INLINE v16 v16_load_bf16_even(const uint16_t *p) {
    return (v16){load_bf16_even(p), load_bf16_even(p + 8), load_bf16_even(p + 16), load_bf16_even(p + 24)};
}
MR_ALWAYS_INLINE void store_4_f16(uint16_t *p, float32x4_t x) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
MR_ALWAYS_INLINE void v16_store_f16(uint16_t *p, v16 x) {
    store_4_f16(p, x.q0);
    store_4_f16(p + 4, x.q1);
    store_4_f16(p + 8, x.q2);
    store_4_f16(p + 12, x.q3);
}

MR_ALWAYS_INLINE v16 v16_add(v16 a, v16 b) {
    return (v16)FOUR_2(vaddq_f32, a, b);
}
MR_ALWAYS_INLINE v16 v16_sub(v16 a, v16 b) {
    return (v16)FOUR_2(vsubq_f32, a, b);
}
MR_ALWAYS_INLINE v16 v16_mul(v16 a, v16 b) {
    return (v16)FOUR_2(vmulq_f32, a, b);
}
MR_ALWAYS_INLINE v16 v16_div(v16 a, v16 b) {
    return (v16)FOUR_2(vdivq_f32, a, b);
}
MR_ALWAYS_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { /* the instruction takes the summand first */
    return (v16)FOUR_3(vfmaq_f32, c, a, b);
}
MR_ALWAYS_INLINE v16 v16_select(v16m m, v16 yes, v16 no) {
    return (v16)FOUR_3(vbslq_f32, m, yes, no);
}
/* Not FMAX and FMIN, which make a NaN of one NaN. */
MR_ALWAYS_INLINE v16 v16_max(v16 a, v16 b) { /* a > b ? a : b */
    return v16_select((v16m)FOUR_2(vcgtq_f32, a, b), a, b);
}
MR_ALWAYS_INLINE v16 v16_min(v16 a, v16 b) { /* a < b ? a : b */
    return v16_select((v16m)FOUR_2(vcltq_f32, a, b), a, b);
}
MR_ALWAYS_INLINE v16 v16_neg(v16 a) {
    return (v16)FOUR_1(vnegq_f32, a);
}
MR_ALWAYS_INLINE float32x4_t negate_even(float32x4_t a) {
    uint32x4_t sign = vreinterpretq_u32_u64(vdupq_n_u64(0x80000000u));
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), sign));
}
MR_ALWAYS_INLINE v16 v16_fmaddsub(v16 a, v16 b, v16 c) { /* even lanes a b - c, odd + c */
    return v16_fma(a, b, (v16)FOUR_1(negate_even, c));
}
MR_ALWAYS_INLINE float32x4_t dup_even(float32x4_t a) {
    return vtrn1q_f32(a, a);
}
MR_ALWAYS_INLINE float32x4_t dup_odd(float32x4_t a) {
    return vtrn2q_f32(a, a);
}
MR_ALWAYS_INLINE v16 v16_dup_even(v16 a) {
    return (v16)FOUR_1(dup_even, a);
}
MR_ALWAYS_INLINE v16 v16_dup_odd(v16 a) {
    return (v16)FOUR_1(dup_odd, a);
}

MR_ALWAYS_INLINE uint32x4_t is_nan(float32x4_t a) {
    return vmvnq_u32(vceqq_f32(a, a));
}
MR_ALWAYS_INLINE v16m v16_less(v16 a, v16 b) {
    return (v16m)FOUR_2(vcltq_f32, a, b);
}
MR_ALWAYS_INLINE v16m v16_is_nan(v16 a) {
    return (v16m)FOUR_1(is_nan, a);
}

MR_ALWAYS_INLINE v16i v16_bits(v16 a) {
    return (v16i)FOUR_1(vreinterpretq_s32_f32, a);
}
MR_ALWAYS_INLINE v16 v16_from_bits(v16i a) {
    return (v16)FOUR_1(vreinterpretq_f32_s32, a);
}
MR_ALWAYS_INLINE v16i v16i_add(v16i a, v16i b) {
    return (v16i)FOUR_2(vaddq_s32, a, b);
}
MR_ALWAYS_INLINE v16i v16i_max(v16i a, v16i b) {
    return (v16i)FOUR_2(vmaxq_s32, a, b);
}
MR_ALWAYS_INLINE float32x4_t zero_if(uint32x4_t m, float32x4_t x) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), m));
}
MR_ALWAYS_INLINE v16 v16_zero_if(v16m m, v16 x) {
    return (v16)FOUR_2(zero_if, m, x);
}
MR_ALWAYS_INLINE int32x4_t to_exponent(int32x4_t a) {
    return vshlq_n_s32(a, 23);
}
/* 2^(e - 128), and 0 for e < 2: the exponent field is e - 1. */
MR_ALWAYS_INLINE v16 v16_load_power(const uint8_t *e) {
    uint8x16_t up = vqsubq_u8(vld1q_u8(e), vdupq_n_u8(1));
    uint16x8_t lo = vmovl_u8(vget_low_u8(up)), hi = vmovl_high_u8(up);
    v16i wide = v16i_from_i16(vreinterpretq_s16_u16(lo), vreinterpretq_s16_u16(hi));
    return v16_from_bits((v16i)FOUR_1(to_exponent, wide));
}
/* p * 2^n by adding n to the exponent field. The result must be normal; a NaN in p stays NaN. n = shifted -
 * MR_EXPF_MAGIC stands in the low bits of shifted. */
MR_ALWAYS_INLINE v16 v16_times_2n(v16 p, v16 shifted, v16 n) {
    (void)n;
    v16i bits = v16_bits(shifted), up = FOUR_1(to_exponent, bits);
    return v16_select(v16_is_nan(p), p, v16_from_bits(v16i_add(v16_bits(p), up)));
}
MR_ALWAYS_INLINE v16i v16_abs_bits(v16 a) {
    return v16_bits((v16)FOUR_1(vabsq_f32, a));
}
MR_ALWAYS_INLINE v16i v16_round(v16 a) { /* nearest, ties to even */
    return (v16i)FOUR_1(vcvtnq_s32_f32, a);
}
MR_ALWAYS_INLINE int32_t v16i_reduce_add(v16i a) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.q0, a.q1), vaddq_s32(a.q2, a.q3)));
}
MR_ALWAYS_INLINE int32_t v16i_reduce_max(v16i a) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.q0, a.q1), vmaxq_s32(a.q2, a.q3)));
}
MR_ALWAYS_INLINE void v16i_store_i8(int8_t *p, v16i a) {
    int16x8_t lo = vcombine_s16(vmovn_s32(a.q0), vmovn_s32(a.q1)), hi = vcombine_s16(vmovn_s32(a.q2), vmovn_s32(a.q3));
    vst1q_s8(p, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
}

/* The tree of rule S1. */
MR_ALWAYS_INLINE float v16_tree(v16 a) {
    float32x4_t t = vaddq_f32(vaddq_f32(a.q0, a.q2), vaddq_f32(a.q1, a.q3));
    float32x2_t u = vadd_f32(vget_low_f32(t), vget_high_f32(t));
    return vget_lane_f32(vpadd_f32(u, u), 0);
}
MR_ALWAYS_INLINE float v16_reduce_max(v16 a) { /* no NaN among them */
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.q0, a.q1), vmaxq_f32(a.q2, a.q3)));
}

MR_ALWAYS_INLINE v64 v64_load(const uint8_t *p) {
    return (v64){vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)};
}
MR_ALWAYS_INLINE void v64_store(uint8_t *p, v64 x) {
    vst1q_u8(p, x.q0);
    vst1q_u8(p + 16, x.q1);
    vst1q_u8(p + 32, x.q2);
    vst1q_u8(p + 48, x.q3);
}
MR_ALWAYS_INLINE v64 v64_set1(int n) {
    uint8x16_t all = vdupq_n_u8((uint8_t)n);
    return (v64){all, all, all, all};
}
MR_ALWAYS_INLINE v64 v64_minus(v64 x, int n) {
    return (v64)FOUR_2(vsubq_u8, x, v64_set1(n));
}
MR_ALWAYS_INLINE v64 v64_and(v64 x, int mask) {
    return (v64)FOUR_2(vandq_u8, x, v64_set1(mask));
}
MR_ALWAYS_INLINE uint8x16_t high_nibbles(uint8x16_t x) {
    return vshrq_n_u8(x, 4);
}
MR_ALWAYS_INLINE v64 v64_nibbles(v64 x, bool high) {
    return high ? (v64)FOUR_1(high_nibbles, x) : v64_and(x, 15);
}
MR_ALWAYS_INLINE v64 v64_look_up(const int8_t table[16], int plus, v64 x) {
    uint8x16_t values = vaddq_u8(vreinterpretq_u8_s8(vld1q_s8(table)), vdupq_n_u8((uint8_t)plus));
    const v64 four = {values, values, values, values};
    return (v64)FOUR_2(vqtbl1q_u8, four, x);
}
MR_ALWAYS_INLINE v64 v64_with_bit_4(v64 x, v64 bits, int n) {
    int8x16_t left = vdupq_n_s8((int8_t)(4 - n));
    v64 moved = {vshlq_u8(bits.q0, left), vshlq_u8(bits.q1, left), vshlq_u8(bits.q2, left), vshlq_u8(bits.q3, left)};
    return (v64)FOUR_2(vorrq_u8, x, v64_and(moved, 16));
}
MR_ALWAYS_INLINE uint8x16_t top_bits(uint8x16_t a, uint8x16_t b,
                                     uint8x16_t c) { /* each is shifted in above the next one */
    return vsliq_n_u8(vsliq_n_u8(vshrq_n_u8(c, 6), vshrq_n_u8(b, 6), 2), vshrq_n_u8(a, 6), 4);
}
MR_ALWAYS_INLINE v64 v64_top_bits(v64 a, v64 b, v64 c) {
    return (v64)FOUR_3(top_bits, a, b, c);
}

#endif
