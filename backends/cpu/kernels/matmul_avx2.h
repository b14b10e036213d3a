/* backends/cpu/kernels/matmul_avx2.h - the epilogue of the AVX2 matrix products. A panel is two registers: rows 0..7,
 * 8..15. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_AVX2_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/matmul_panels.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* y[row][panel's lanes] = acc (+ bias) (+ add); lanes past n are neither read nor written. */
ALWAYS_INLINE void store_panel(const mr_matmul_args *args, int32_t row, int32_t panel, __m256 acc0, __m256 acc1) {
    int32_t n0 = panel * MR_PANEL;
    float *y = matmul_y_row(args, row) + n0;
    const float *add = matmul_add_row(args, row), *bias = args->bias;
    if (args->n - n0 >= MR_PANEL) {
        if (bias) {
            acc0 = _mm256_add_ps(acc0, _mm256_loadu_ps(bias + n0));
            acc1 = _mm256_add_ps(acc1, _mm256_loadu_ps(bias + n0 + 8));
        }
        if (add) {
            acc0 = _mm256_add_ps(acc0, _mm256_loadu_ps(add + n0));
            acc1 = _mm256_add_ps(acc1, _mm256_loadu_ps(add + n0 + 8));
        }
        _mm256_storeu_ps(y, acc0);
        _mm256_storeu_ps(y + 8, acc1);
        return;
    }
    float lanes[MR_PANEL];
    _mm256_storeu_ps(lanes, acc0);
    _mm256_storeu_ps(lanes + 8, acc1);
    for (int32_t i = 0; i < args->n - n0; i++) {
        float v = lanes[i];
        if (bias)
            v += bias[n0 + i];
        if (add)
            v += add[n0 + i];
        y[i] = v;
    }
}

#endif
