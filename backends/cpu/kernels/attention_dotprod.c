/* backends/cpu/kernels/attention_dotprod.c - rules T and T8 with NEON and SDOT. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/attention_neon.h"

void mr_attention_dotprod(const mr_attention_args *args, const mr_attention_part *part) {
    attention_vec(args, part);
}
