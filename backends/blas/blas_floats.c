/* backends/blas/blas_floats.c - chooses the function that converts a block of a matrix to float32 for the BLAS library.
 * On a CPU with F16C, half precision has a fast function. Everything else takes mr_dequantize. */
// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "backends/blas/blas_internal.h"
#include "engine/tensor/quant.h"

#if defined(__x86_64__)
static bool has_f16c(void) {
    /* clang 14 does not know the name "f16c", so CPUID is read here. The check for AVX includes whether the operating
     * system saves the registers. */
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

blas_to_floats_fn *blas_to_floats_of(mr_type type) {
#if defined(__x86_64__)
    if (type == MR_TYPE_F16 && has_f16c())
        return blas_halves_f16c;
#endif
    (void)type;
    return mr_dequantize;
}
