/* backends/blas/blas_halves_f16c.c - converts half precision to float32 with the instructions of F16C. It is a file of
 * its own because only this file may be compiled for F16C. */
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "backends/blas/blas_internal.h"
#include "engine/base/le.h"

void blas_halves_f16c(mr_type type, const void *rows, float *out, int64_t n) {
    (void)type;
    const uint8_t *src = rows;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i))));
    for (; i < n; i++)
        out[i] = _cvtsh_ss(mr_load_le16(src + 2 * i));
}
