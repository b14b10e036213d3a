/* backends/cpu/kernels/attention_avx2.h - rules T and T8 (attention_vec.h) with AVX2, FMA and F16C, and with AVX-VNNI
 * where MR_VNNI is defined.
 * A product of 6 queries and 1 vector of 16 lanes keeps 12 sums in registers and loads 8 values for 12 fma.
 * Include it once for each level. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ATTENTION_AVX2_H
#define MR_BACKENDS_CPU_KERNELS_ATTENTION_AVX2_H

#include "backends/cpu/kernels/attention_int8_avx2.h"
#include "backends/cpu/kernels/vec_avx2.h"

enum { MAX_QUERIES = 6 }; /* of one product */
// clang-format off
#define PRODUCT_SHAPES                                                                                                 \
    PRODUCT(1, 1) PRODUCT(1, 2) PRODUCT(1, 4) PRODUCT(2, 1) PRODUCT(2, 2)                                              \
    PRODUCT(3, 1) PRODUCT(4, 1) PRODUCT(5, 1) PRODUCT(6, 1)
// clang-format on
#include "backends/cpu/kernels/attention_vec.h"

#endif
