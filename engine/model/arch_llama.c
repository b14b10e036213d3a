/* engine/model/arch_llama.c - Llama (Touvron et al., 2023) and the models with the same layers: Mistral, TinyLlama,
 * SmolLM and others; with experts Mixtral (Jiang et al., 2024); with
 * sparse feed-forward parts the ReLU models of PowerInfer (Song et al., 2023). */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

const mr_arch mr_arch_llama = {
    .name = "llama",
    .rope_pairs = MR_ROPE_INTERLEAVED,
    .relu_unit = MR_RELU_GATE,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_ANY_BIASES, SPEC_GLU, SPEC_GLU_BIASES, SPEC_SPARSE, SPEC_MOE},
    .layer = part_llama_layer,
};
