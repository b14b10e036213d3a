/* backends/cpu/kernels/matmul_float_avx512.c - rule M (matmul_float_vec.h) for F32, F16 and BF16 weights with AVX-512.
 * A tile of 2 panels by 14 rows keeps 28 sums in the 32 registers. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_avx512.h"

enum { TILE_PANELS = 2, TILE_ROWS = 14, CHUNK = 128, STEP = 16 };

#include "backends/cpu/kernels/matmul_float_vec.h"

MATMUL_KERNEL(matmul_f32_avx512, F32)
MATMUL_KERNEL(matmul_f16_avx512, F16)
MATMUL_KERNEL(matmul_bf16_avx512, BF16)
