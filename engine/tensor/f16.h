/* engine/tensor/f16.h - converts half precision and bfloat16 to and from single precision. The code computes with
 * integers only, so the results are the same while denormals are flushed. Subnormal halves keep their values (rule A3
 * of engine/NUMERICS.md). Subnormal bfloat16 numbers are subnormal in single precision, too.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TENSOR_F16_H
#define MR_ENGINE_TENSOR_F16_H

#include <stdint.h>

#include "engine/base/fmath.h"

enum { MR_F16_NAN = 0x7e00 };

MR_INLINE float mr_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 0x1fu, man = h & 0x3ffu;
    if (exp == 31)
        return mr_bits_f32(sign | 0x7f800000u | man << 13 | (man ? 0x400000u : 0)); /* a NaN becomes quiet */
    if (exp == 0) {
        if (man == 0)
            return mr_bits_f32(sign);
        int shift = __builtin_clz(man) - 21; /* brings the highest bit of man to bit 10 */
        man = man << shift & 0x3ffu;
        exp = (uint32_t)(1 - shift);
    }
    return mr_bits_f32(sign | (exp + 112u) << 23 | man << 13);
}

/* Rounds to nearest, ties to even, as the F16C instructions do. */
MR_INLINE uint16_t mr_f32_to_f16(float f) {
    uint32_t u = mr_f32_bits(f), sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;
    if (mag >= 0x7f800000u)
        return (uint16_t)(sign | 0x7c00u | (mag > 0x7f800000u ? 0x200u | (mag >> 13 & 0x1ffu) : 0));
    if (mag >= 0x477ff000u) /* 65520 and more becomes infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (mag < 0x33000000u) /* below half of the smallest subnormal, 2^-25 */
        return (uint16_t)sign;
    uint32_t exp = mag >> 23, man = (mag & 0x7fffffu) | 0x800000u;
    uint32_t drop = exp < 113 ? 126 - exp : 13; /* bits of man to round away; more for subnormal results */
    uint32_t half = 1u << (drop - 1), rest = man & ((1u << drop) - 1), q = man >> drop;
    q += rest > half || (rest == half && (q & 1u));
    /* A normal q contains its leading one, which adds 1 to the exponent field. */
    uint32_t h = exp < 113 ? q : ((exp - 113u) << 10) + q;
    return (uint16_t)(sign | h);
}

MR_INLINE float mr_bf16_to_f32(uint16_t h) {
    return mr_bits_f32((uint32_t)h << 16);
}

/* Rounds to nearest, ties to even. Denormals become zero (rule A2) and a NaN stays a NaN, as with the instruction
 * VCVTNEPS2BF16. */
MR_INLINE uint16_t mr_f32_to_bf16(float f) {
    uint32_t u = mr_f32_bits(f), mag = u & 0x7fffffffu;
    uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16; /* no branch, so that compilers vectorise loops */
    rounded = mag < 0x00800000u ? u >> 16 & 0x8000u : rounded;
    return (uint16_t)(mag > 0x7f800000u ? u >> 16 | 0x40u : rounded);
}

#endif
