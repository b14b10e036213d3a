/* backends/cpu/kernels/vec_exp.h - mr_expf and mr_siluf on 16 lanes (rule F1): the steps of engine/base/fmath.h one by
 * one. Include after vec_avx2.h or vec_avx512.h. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_VEC_EXP_H
#define MR_BACKENDS_CPU_KERNELS_VEC_EXP_H

#include "engine/base/fmath.h"

/* e^x; a NaN stays NaN whatever its payload. */
MR_INLINE v16 v16_exp(v16 x) {
    v16 c = v16_min(v16_set1(MR_EXPF_MAX), x); /* x where x is NaN */
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
    v16 y = v16_from_bits(v16i_add(v16_bits(p), v16i_shift_left_23(v16_bits(shifted))));
    y = v16_select(v16_less(x, v16_set1(MR_EXPF_MIN)), v16_set1(0.0f), y);
    return v16_select(v16_is_nan(x), x, y);
}

/* x / (1 + e^-x) */
MR_INLINE v16 v16_silu(v16 x) {
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(v16_neg(x))));
}

#endif
