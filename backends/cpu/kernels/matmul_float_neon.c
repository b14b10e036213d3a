/* backends/cpu/kernels/matmul_float_neon.c - rule M (matmul_float_vec.h) for F32, F16 and BF16 weights with NEON.
 * A tile of 6 rows keeps 24 sums in the 32 registers. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_neon.h"

enum { TILE_PANELS = 1, TILE_ROWS = 6, CHUNK = 128, STEP = 16 };

#include "backends/cpu/kernels/matmul_float_vec.h"

MATMUL_KERNEL(matmul_f32_neon, F32)
MATMUL_KERNEL(matmul_f16_neon, F16)
MATMUL_KERNEL(matmul_bf16_neon, BF16)
