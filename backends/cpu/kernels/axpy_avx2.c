/* backends/cpu/kernels/axpy_avx2.c - the sums of rows of axpy_vec.h with AVX2, FMA and F16C. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_avx2.h"

#include "backends/cpu/kernels/axpy_vec.h"

void mr_axpy_avx2(const mr_axpy_args *args, int32_t first, int32_t last) {
    axpy_vec(args, first, last);
}
