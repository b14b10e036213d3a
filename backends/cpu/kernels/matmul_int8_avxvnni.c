/* backends/cpu/kernels/matmul_int8_avxvnni.c - the quantised types with AVX2 and AVX-VNNI. */
// SPDX-License-Identifier: Apache-2.0
#define MR_VNNI
#include "backends/cpu/kernels/matmul_int8_avx2.h"

#define LEVEL(name) name##_avxvnni
#include "backends/cpu/kernels/matmul_int8_kernels.h"
