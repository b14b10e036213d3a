/* backends/cpu/kernels/axpy_avx512.c - the sums of rows of axpy_vec.h with AVX-512. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_avx512.h"

#include "backends/cpu/kernels/axpy_vec.h"

void mr_axpy_avx512(const mr_axpy_args *args, int32_t first, int32_t last) {
    axpy_vec(args, first, last);
}
