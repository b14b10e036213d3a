/* backends/cpu/kernels/attention_neon.c - rule T (attention_vec.h) with NEON.
 * A product of 6 queries and 1 vector of 16 lanes keeps 24 sums in the 32 registers and loads 10 values for 24 fma. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_neon.h"

enum { MAX_QUERIES = 6 }; /* of one product */
// clang-format off
#define PRODUCT_SHAPES                                                                                                 \
    PRODUCT(1, 1) PRODUCT(1, 2) PRODUCT(1, 4) PRODUCT(2, 1) PRODUCT(2, 2)                                              \
    PRODUCT(3, 1) PRODUCT(4, 1) PRODUCT(5, 1) PRODUCT(6, 1)
// clang-format on
#include "backends/cpu/kernels/attention_vec.h"

void mr_attention_neon(const mr_attention_args *args, const mr_attention_part *part) {
    attention_vec(args, part);
}
