/* engine/model/arch_mistral3.c - Ministral 3 and its kin (Mistral AI, 2025): Llama's layer. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

const mr_arch mr_arch_mistral3 = {
    .name = "mistral3",
    .rope_pairs = MR_ROPE_INTERLEAVED,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_ANY_BIASES, SPEC_GLU, SPEC_MOE},
    .layer = part_llama_layer,
};
