/* engine/base/fmath.c - exp in double, for constants. The C library may compute other bits on another machine; these
 * functions compute the same bits everywhere. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/fmath.h"

static double bits_f64(uint64_t u) {
    double d;
    memcpy(&d, &u, 8);
    return d;
}

double mr_exp(double x) {
    if (x < -700.0)
        return 0.0;
    if (x > 709.0)
        x = 709.0;
    double n = mr_round_even(x * 1.44269504088896338700);
    double r = fma(n, -MR_LN2_HI, x);
    r = fma(n, -MR_LN2_LO, r);
    /* Taylor series to r^17 / 17!, |r| <= 0.35. */
    double p = 1.0;
    for (int i = 17; i >= 1; i--)
        p = fma(p, r / (double)i, 1.0);
    return p * bits_f64((uint64_t)(1023 + (int64_t)n) << 52);
}

double mr_pow(double x, double y) {
    return mr_exp(y * mr_log(x));
}
