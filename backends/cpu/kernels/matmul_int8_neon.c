/* backends/cpu/kernels/matmul_int8_neon.c - the quantised types with NEON. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_int8_neon.h"

#define LEVEL(name) name##_neon
#include "backends/cpu/kernels/matmul_int8_kernels.h"
