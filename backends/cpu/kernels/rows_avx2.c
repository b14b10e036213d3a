/* backends/cpu/kernels/rows_avx2.c - the row operations of rows_vec.h with AVX2, FMA and F16C. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_avx2.h"

#include "backends/cpu/kernels/rows_vec.h"

MR_ROWS_OF(avx2)
