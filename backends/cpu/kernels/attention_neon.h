/* backends/cpu/kernels/attention_neon.h - rules T and T8 (attention_vec.h) with NEON, and with SDOT where the
 * compiler may use it.
 * A product of 6 queries and 1 vector of 16 lanes keeps 24 sums in the 32 registers and loads 10 values for 24 fma.
 * Include it once for each level. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ATTENTION_NEON_H
#define MR_BACKENDS_CPU_KERNELS_ATTENTION_NEON_H

#include "backends/cpu/kernels/attention_int8_neon.h"
#include "backends/cpu/kernels/vec_neon.h"

enum { MAX_QUERIES = 6 }; /* of one product */
// clang-format off
#define PRODUCT_SHAPES                                                                                                 \
    PRODUCT(1, 1) PRODUCT(1, 2) PRODUCT(1, 4) PRODUCT(2, 1) PRODUCT(2, 2)                                              \
    PRODUCT(3, 1) PRODUCT(4, 1) PRODUCT(5, 1) PRODUCT(6, 1)
// clang-format on
#include "backends/cpu/kernels/attention_vec.h"

#endif
