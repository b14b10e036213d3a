/* backends/cpu/kernels/matmul_int8_avx512.c - the quantised types with AVX-512 and VNNI. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_int8_avx512.h"

#define LEVEL(name) name##_avx512
#include "backends/cpu/kernels/matmul_int8_kernels.h"
