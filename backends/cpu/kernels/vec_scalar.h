/* backends/cpu/kernels/vec_scalar.h - the 16 virtual lanes of rule S1 in plain C, and rounding.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_VEC_SCALAR_H
#define MR_BACKENDS_CPU_KERNELS_VEC_SCALAR_H

#include "engine/base/fmath.h"

enum { MR_LANES = 16 };

/* Nearest integer, ties to even, for |x| < 2^22. */
static inline float round_even(float x) {
    return (x + MR_EXPF_MAGIC) - MR_EXPF_MAGIC;
}

/* The tree of rule S1: i with i + 8, then + 4, + 2, + 1. */
static inline float lanes_tree(const float lane[MR_LANES]) {
    float t[MR_LANES / 2];
    for (int i = 0; i < 8; i++)
        t[i] = lane[i] + lane[i + 8];
    for (int step = 4; step >= 1; step /= 2)
        for (int i = 0; i < step; i++)
            t[i] = t[i] + t[i + step];
    return t[0];
}

#endif
