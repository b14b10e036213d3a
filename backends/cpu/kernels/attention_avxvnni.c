/* backends/cpu/kernels/attention_avxvnni.c - rules T and T8 with AVX2, FMA, F16C and AVX-VNNI. */
// SPDX-License-Identifier: Apache-2.0
#define MR_VNNI
#include "backends/cpu/kernels/attention_avx2.h"

void mr_attention_avxvnni(const mr_attention_args *args, const mr_attention_part *part) {
    attention_vec(args, part);
}
