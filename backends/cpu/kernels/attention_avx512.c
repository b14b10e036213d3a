/* backends/cpu/kernels/attention_avx512.c - rule T (attention_vec.h) with AVX-512 F, BW, VL, DQ.
 * A product of 6 queries and 4 vectors keeps 24 sums in registers and loads 10 values for 24 fma. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_avx512.h"

#define PRODUCT_WIDTHS(nq) PRODUCT(nq, 1) PRODUCT(nq, 2) PRODUCT(nq, 3) PRODUCT(nq, 4)
enum { MAX_QUERIES = 8 }; /* of one product */
#define PRODUCT_SHAPES                                                                                                 \
    PRODUCT_WIDTHS(1)                                                                                                  \
    PRODUCT_WIDTHS(2)                                                                                                  \
    PRODUCT_WIDTHS(3)                                                                                                  \
    PRODUCT_WIDTHS(4) PRODUCT_WIDTHS(5) PRODUCT_WIDTHS(6) PRODUCT(7, 1) PRODUCT(7, 2) PRODUCT(8, 1) PRODUCT(8, 2)
#include "backends/cpu/kernels/attention_vec.h"

void mr_attention_avx512(const mr_attention_args *args, int32_t row_first, int32_t row_last, int32_t kv_head_first,
                         int32_t kv_head_last) {
    attention_vec(args, row_first, row_last, kv_head_first, kv_head_last);
}
