/* engine/model/arch_ernie4_5_moe.c - ERNIE 4.5 with experts (Baidu, 2025): Llama's layer; experts with shared ones. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

const mr_arch mr_arch_ernie4_5_moe = {
    .name = "ernie4_5-moe",
    .rope_pairs = MR_ROPE_INTERLEAVED,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_ANY_BIASES, SPEC_GLU, SPEC_MOE, SPEC_CHOICE_BIAS, SPEC_SHARED},
    .layer = part_llama_layer,
};
