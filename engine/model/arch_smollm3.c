/* engine/model/arch_smollm3.c - SmolLM3 (Hugging Face, 2025): Llama's layer, of which every fourth has no RoPE. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

const mr_arch mr_arch_smollm3 = {
    .name = "smollm3",
    .rope_pairs = MR_ROPE_INTERLEAVED,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_ANY_BIASES, SPEC_GLU},
    .layer = part_llama_layer,
};
