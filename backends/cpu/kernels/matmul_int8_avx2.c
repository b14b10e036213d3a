/* backends/cpu/kernels/matmul_int8_avx2.c - the quantised types with AVX2. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_int8_avx2.h"

#define LEVEL(name) name##_avx2
#include "backends/cpu/kernels/matmul_int8_kernels.h"
