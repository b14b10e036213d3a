/* backends/cpu/kernels/attention_avx2.c - rules T and T8 with AVX2, FMA and F16C. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/attention_avx2.h"

void mr_attention_avx2(const mr_attention_args *args, const mr_attention_part *part) {
    attention_vec(args, part);
}
