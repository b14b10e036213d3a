/* backends/cpu/kernels/axpy_neon.c - the sums of rows of axpy_vec.h with NEON. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_neon.h"

#include "backends/cpu/kernels/axpy_vec.h"

void mr_axpy_neon(const mr_axpy_args *args, int32_t first, int32_t last) {
    axpy_vec(args, first, last);
}
