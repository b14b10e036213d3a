/* backends/cpu/kernels/attention_neon.c - rules T and T8 with NEON. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/attention_neon.h"

void mr_attention_neon(const mr_attention_args *args, const mr_attention_part *part) {
    attention_vec(args, part);
}
