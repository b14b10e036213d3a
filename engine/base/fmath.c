/* engine/base/fmath.c - exp and log in double, for constants. The C library may compute other bits on another machine;
 * these functions compute the same bits everywhere. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/fmath.h"

static const double LN2_HI = 6.93147180369123816490e-01; /* high 33 bits of ln 2 */
static const double LN2_LO = 1.90821492927058770002e-10;

static double bits_f64(uint64_t u) {
    double d;
    memcpy(&d, &u, 8);
    return d;
}

static uint64_t f64_bits(double d) {
    uint64_t u;
    memcpy(&u, &d, 8);
    return u;
}

double mr_exp(double x) {
    if (x < -700.0)
        return 0.0;
    if (x > 709.0)
        x = 709.0;
    double n = mr_round_even(x * 1.44269504088896338700);
    double r = fma(n, -LN2_HI, x);
    r = fma(n, -LN2_LO, r);
    /* Taylor series to r^17 / 17!, |r| <= 0.35. */
    double p = 1.0;
    for (int i = 17; i >= 1; i--)
        p = fma(p, r / (double)i, 1.0);
    return p * bits_f64((uint64_t)(1023 + (int64_t)n) << 52);
}

double mr_log(double x) {
    /* x = 2^e * m with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)). */
    uint64_t u = f64_bits(x);
    int64_t e = (int64_t)(u >> 52) - 1023;
    double m = bits_f64((u & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, p = 0.0;
    for (int i = 23; i >= 1; i -= 2)
        p = fma(p, s2, 1.0 / (double)i);
    return fma((double)e, LN2_HI, fma((double)e, LN2_LO, 2.0 * s * p));
}

double mr_pow(double x, double y) {
    return mr_exp(y * mr_log(x));
}
