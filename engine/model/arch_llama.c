/* engine/model/arch_llama.c - Llama (Touvron et al., 2023) and the models with the same layers: Mistral, TinyLlama,
 * SmolLM and others; with experts Mixtral (Jiang et al., 2024). */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

const mr_arch mr_arch_llama = {
    .name = "llama",
    .rope_pairs = MR_ROPE_INTERLEAVED,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_ANY_BIASES, SPEC_GLU, SPEC_MOE},
    .layer = part_llama_layer,
};
