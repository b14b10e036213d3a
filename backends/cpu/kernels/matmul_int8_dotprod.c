/* backends/cpu/kernels/matmul_int8_dotprod.c - the quantised types with NEON and SDOT. The loops are those of
 * matmul_int8_neon.h; this file compiles them for CPUs with dot product instructions. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/matmul_int8_neon.h"

#define LEVEL(name) name##_dotprod
#include "backends/cpu/kernels/matmul_int8_kernels.h"
