/* backends/cpu/kernels/attention_avx512.c - rules T and T8 (attention_vec.h) with AVX-512 F, BW, VL, DQ, VNNI.
 * A product of 6 queries and 4 vectors keeps 24 sums in registers and loads 10 values for 24 fma. With f16, a product
 * of 8 queries and 2 vectors is faster, because a conversion costs as much as two fma. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/attention_int8_avx512.h"
#include "backends/cpu/kernels/vec_avx512.h"

enum { MAX_QUERIES = 8 }; /* of one product */
// clang-format off
#define PRODUCT_SHAPES                                                                                                 \
    PRODUCT(1, 1) PRODUCT(1, 2) PRODUCT(1, 3) PRODUCT(1, 4)                                                            \
    PRODUCT(2, 1) PRODUCT(2, 2) PRODUCT(2, 3) PRODUCT(2, 4)                                                            \
    PRODUCT(3, 1) PRODUCT(3, 2) PRODUCT(3, 3) PRODUCT(3, 4)                                                            \
    PRODUCT(4, 1) PRODUCT(4, 2) PRODUCT(4, 3) PRODUCT(4, 4)                                                            \
    PRODUCT(5, 1) PRODUCT(5, 2) PRODUCT(5, 3) PRODUCT(5, 4)                                                            \
    PRODUCT(6, 1) PRODUCT(6, 2) PRODUCT(6, 3) PRODUCT(6, 4)                                                            \
    PRODUCT(7, 1) PRODUCT(7, 2) PRODUCT(8, 1) PRODUCT(8, 2)
// clang-format on
#include "backends/cpu/kernels/attention_vec.h"

void mr_attention_avx512(const mr_attention_args *args, const mr_attention_part *part) {
    attention_vec(args, part);
}
