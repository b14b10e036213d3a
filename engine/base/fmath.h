/* engine/base/fmath.h - exp, tanh and other functions of the token path. The C library is not used, so that every
 * machine computes the same bits. Rule F1 of engine/NUMERICS.md: only IEEE additions, multiplications, divisions and
 * fmaf, in the order written here. Vector kernels repeat these steps lane by lane. Polynomials are Taylor series on a
 * reduced range, except for tanh. The kernels of devices use the functions that are MR_INLINE.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_FMATH_H
#define MR_ENGINE_BASE_FMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/inline.h"

#define MR_EXPF_MIN (-87.0f) /* the result is 0 below */
#define MR_EXPF_MAX 88.0f    /* larger x count as 88 */
#define MR_EXPF_LOG2E 1.44269504f
#define MR_EXPF_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to the nearest integer, ties to even */
#define MR_EXPF_LN2_HI 0.693145752f
#define MR_EXPF_LN2_LO 1.42860677e-06f
#define MR_EXPF_C2 0.5f
#define MR_EXPF_C3 0.166666672f
#define MR_EXPF_C4 0.0416666679f
#define MR_EXPF_C5 0.00833333377f
#define MR_EXPF_C6 0.00138888892f

MR_INLINE float mr_bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
MR_INLINE uint32_t mr_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* e^x in float: x = n ln 2 + r with |r| <= ln 2 / 2, then 2^n * p(r). For a NaN: any value. */
MR_INLINE float mr_expf(float x) {
    if (x < MR_EXPF_MIN)
        return 0.0f;
    float c = x > MR_EXPF_MAX ? MR_EXPF_MAX : x;
    float shifted = fmaf(c, MR_EXPF_LOG2E, MR_EXPF_MAGIC);
    float n = shifted - MR_EXPF_MAGIC;
    float r = fmaf(n, -MR_EXPF_LN2_HI, c);
    r = fmaf(n, -MR_EXPF_LN2_LO, r);
    float p = MR_EXPF_C6;
    p = fmaf(p, r, MR_EXPF_C5);
    p = fmaf(p, r, MR_EXPF_C4);
    p = fmaf(p, r, MR_EXPF_C3);
    p = fmaf(p, r, MR_EXPF_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* Multiplies by 2^n by adding n to the exponent. The low bits of shifted hold n. */
    return mr_bits_f32(mr_f32_bits(p) + (mr_f32_bits(shifted) << 23));
}

/* e^x, and NaN for every NaN. */
MR_INLINE float mr_expf_or_nan(float x) {
    return x == x ? mr_expf(x) : x;
}

/* 1 / (1 + e^-x) */
MR_INLINE float mr_sigmoidf(float x) {
    return 1.0f / (1.0f + mr_expf_or_nan(-x));
}

/* x / (1 + e^-x) */
MR_INLINE float mr_siluf(float x) {
    return x / (1.0f + mr_expf(-x));
}

#define MR_GELUF_C1 1.59576912f /* 2 sqrt(2 / pi) */
#define MR_GELUF_C3 0.044715f

/* GELU in the form with tanh (Hendrycks and Gimpel, 2016). (1 + tanh z) / 2 is 1 / (1 + e^-2z), which loses no digits
 * where tanh z is near -1. */
MR_INLINE float mr_geluf(float x) {
    float h = x * MR_GELUF_C1 * fmaf(x * MR_GELUF_C3, x, 1.0f);
    return x / (1.0f + mr_expf(-h));
}

#define MR_TANHF_SMALL 0.625f /* up to here a polynomial is used, fitted to 4e-9 */
#define MR_TANHF_C3 -0.333332839f
#define MR_TANHF_C5 0.133314913f
#define MR_TANHF_C7 -0.0537434955f
#define MR_TANHF_C9 0.0206505796f
#define MR_TANHF_C11 -0.00571703712f

/* Hyperbolic tangent. For small x: x + x^3 p(x^2). Otherwise 1 - 2 / (e^2|x| + 1) with the sign of x. NaN stays NaN. */
MR_INLINE float mr_tanhf(float x) {
    float a = fabsf(x), t = x * x, p = MR_TANHF_C11;
    if (a > MR_TANHF_SMALL) {
        float y = 1.0f - 2.0f / (mr_expf(2.0f * a) + 1.0f);
        return x < 0.0f ? -y : y;
    }
    p = fmaf(p, t, MR_TANHF_C9);
    p = fmaf(p, t, MR_TANHF_C7);
    p = fmaf(p, t, MR_TANHF_C5);
    p = fmaf(p, t, MR_TANHF_C3);
    return fmaf(x * t, p, x);
}

/* Double functions for constants and angles; absolute error below 1e-15 on their ranges. */
double mr_exp(double x);
double mr_pow(double x, double y); /* x > 0: exp(y log x) */

/* The nearest integer, ties to even, |x| < 2^51. */
MR_INLINE double mr_round_even(double x) {
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    return (x + magic) - magic;
}

/* Sine and cosine of an angle in radians, |x| < 2^30, reduced in double with a two-part pi/2. */
MR_INLINE void mr_sincos(double x, double *out_sin, double *out_cos) {
    const double half_pi_hi = 1.57079632679489655800, half_pi_lo = 6.12323399573676603587e-17;
    double n = mr_round_even(x * 6.36619772367581382433e-01);
    double r = fma(n, -half_pi_hi, x);
    r = fma(n, -half_pi_lo, r);
    double r2 = r * r, s = 1.0, c = 1.0;
    for (int i = 20; i >= 2; i -= 2)
        s = fma(s, -r2 / (double)(i * (i + 1)), 1.0);
    for (int i = 19; i >= 1; i -= 2)
        c = fma(c, -r2 / (double)(i * (i + 1)), 1.0);
    s *= r;
    switch ((int64_t)n & 3) {
    case 0:
        *out_sin = s, *out_cos = c;
        break;
    case 1:
        *out_sin = c, *out_cos = -s;
        break;
    case 2:
        *out_sin = -s, *out_cos = -c;
        break;
    default:
        *out_sin = -c, *out_cos = s;
    }
}

#define MR_LN2_HI 6.93147180369123816490e-01 /* high 33 bits of ln 2 */
#define MR_LN2_LO 1.90821492927058770002e-10

/* Natural logarithm, x > 0 and finite. */
MR_INLINE double mr_log(double x) {
    /* x = 2^e * m with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)). */
    uint64_t u;
    memcpy(&u, &x, 8);
    int64_t e = (int64_t)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &u, 8);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, p = 0.0;
    for (int i = 23; i >= 1; i -= 2)
        p = fma(p, s2, 1.0 / (double)i);
    return fma((double)e, MR_LN2_HI, fma((double)e, MR_LN2_LO, 2.0 * s * p));
}

#endif
