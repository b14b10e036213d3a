/* backends/cpu/kernels/vec_exp.h - the functions of rule F1 on 16 lanes. Each function has the same steps as its scalar
 * version in engine/base/fmath.h. Include it after vec_avx512.h or the like.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_VEC_EXP_H
#define MR_BACKENDS_CPU_KERNELS_VEC_EXP_H

#include <stdbool.h>

#include "engine/base/fmath.h"

/* e^x; every NaN stays NaN, whatever its payload. is_declining: no x is positive, so the upper clamp is left out. */
MR_ALWAYS_INLINE v16 exp_body(v16 x, const bool is_declining) {
    v16 c = is_declining ? x : v16_min(v16_set1(MR_EXPF_MAX), x); /* x where x is NaN */
    v16 magic = v16_set1(MR_EXPF_MAGIC), one = v16_set1(1.0f);
    v16 shifted = v16_fma(c, v16_set1(MR_EXPF_LOG2E), magic);
    v16 n = v16_sub(shifted, magic);
    v16 r = v16_fma(n, v16_set1(-MR_EXPF_LN2_HI), c);
    r = v16_fma(n, v16_set1(-MR_EXPF_LN2_LO), r);
    v16 p = v16_set1(MR_EXPF_C6);
    p = v16_fma(p, r, v16_set1(MR_EXPF_C5));
    p = v16_fma(p, r, v16_set1(MR_EXPF_C4));
    p = v16_fma(p, r, v16_set1(MR_EXPF_C3));
    p = v16_fma(p, r, v16_set1(MR_EXPF_C2));
    p = v16_fma(p, r, one);
    p = v16_fma(p, r, one);
    return v16_zero_if(v16_less(x, v16_set1(MR_EXPF_MIN)), v16_times_2n(p, shifted, n));
}
MR_ALWAYS_INLINE v16 v16_exp(v16 x) {
    return exp_body(x, false);
}
MR_ALWAYS_INLINE v16 v16_exp_declining(v16 x) {
    return exp_body(x, true);
}

MR_ALWAYS_INLINE v16 v16_tanh(v16 x) {
    v16 a = v16_from_bits(v16_abs_bits(x)), t = v16_mul(x, x), one = v16_set1(1.0f);
    v16 p = v16_fma(v16_set1(MR_TANHF_C11), t, v16_set1(MR_TANHF_C9));
    p = v16_fma(p, t, v16_set1(MR_TANHF_C7));
    p = v16_fma(p, t, v16_set1(MR_TANHF_C5));
    p = v16_fma(p, t, v16_set1(MR_TANHF_C3));
    p = v16_fma(v16_mul(x, t), p, x);
    v16 e = v16_add(v16_exp(v16_mul(v16_set1(2.0f), a)), one);
    v16 y = v16_sub(one, v16_div(v16_set1(2.0f), e));
    y = v16_select(v16_less(x, v16_set1(0.0f)), v16_neg(y), y);
    return v16_select(v16_less(v16_set1(MR_TANHF_SMALL), a), y, p);
}

/* x / (1 + e^-h): mr_sigmoidf(h) for x = 1, mr_siluf(h) for x = h */
MR_ALWAYS_INLINE v16 v16_logistic(v16 x, v16 h) {
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(v16_neg(h))));
}

MR_ALWAYS_INLINE v16 v16_gelu(v16 x) {
    v16 p = v16_fma(v16_mul(x, v16_set1(MR_GELUF_C3)), x, v16_set1(1.0f));
    return v16_logistic(x, v16_mul(v16_mul(x, v16_set1(MR_GELUF_C1)), p));
}

#endif
