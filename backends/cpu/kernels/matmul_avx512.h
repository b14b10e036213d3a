/* backends/cpu/kernels/matmul_avx512.h - what the AVX-512 matrix products share: the walk over tiles and the epilogue.
 * Always-inline, so that each kernel gets its own copy with its own constants. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_AVX512_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/matmul_panels.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Four activations, the same for all lanes. */
ALWAYS_INLINE __m512i broadcast_group(const int8_t *a) {
    int32_t v;
    memcpy(&v, a, 4);
    return _mm512_set1_epi32(v);
}

/* y[row][panel's lanes] = acc (+ bias) (+ add); lanes past n are neither read nor written. */
ALWAYS_INLINE void store_panel(const mr_matmul_args *args, int32_t row, int32_t panel, __m512 acc) {
    int32_t n0 = panel * MR_PANEL, left = args->n - n0;
    __mmask16 mask = left >= MR_PANEL ? 0xffff : (__mmask16)((1u << left) - 1);
    if (args->bias)
        acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(mask, args->bias + n0));
    const float *add = matmul_add_row(args, row);
    if (add)
        acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(mask, add + n0));
    _mm512_mask_storeu_ps(matmul_y_row(args, row) + n0, mask, acc);
}

#endif
