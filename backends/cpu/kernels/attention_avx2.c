/* backends/cpu/kernels/attention_avx2.c - rule T (attention_vec.h) with AVX2, FMA and F16C.
 * A product of 6 queries and 1 vector of 16 lanes keeps 12 sums in registers and loads 8 values for 12 fma. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_avx2.h"

enum { MAX_QUERIES = 6 }; /* of one product */
// clang-format off
#define PRODUCT_SHAPES                                                                                                 \
    PRODUCT(1, 1) PRODUCT(1, 2) PRODUCT(1, 4) PRODUCT(2, 1) PRODUCT(2, 2)                                              \
    PRODUCT(3, 1) PRODUCT(4, 1) PRODUCT(5, 1) PRODUCT(6, 1)
// clang-format on
#include "backends/cpu/kernels/attention_vec.h"

void mr_attention_avx2(const mr_attention_args *args, const mr_attention_part *part) {
    attention_vec(args, part);
}
