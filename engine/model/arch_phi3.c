/* engine/model/arch_phi3.c - Phi-3 and Phi-4 (Abdin et al., 2024): Llama's layer, with q, k and v as rows of one
 * matrix, and gate and up as rows of another. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

static const tensor_spec OWN[] = {
    {W_Q, "attn_qkv.weight", SIZE_D, SIZE_Q, 0},     {W_K, "attn_qkv.weight", SIZE_D, SIZE_K, 0},
    {W_V, "attn_qkv.weight", SIZE_D, SIZE_V, 0},     {W_O, "attn_output.weight", SIZE_A, SIZE_D, 0},
    {W_GATE, "ffn_up.weight", SIZE_D, SIZE_FF, 0},   {W_UP, "ffn_up.weight", SIZE_D, SIZE_FF, 0},
    {W_DOWN, "ffn_down.weight", SIZE_FF, SIZE_D, 0}, {0},
};

const mr_arch mr_arch_phi3 = {
    .name = "phi3",
    .rope_pairs = MR_ROPE_HALVES,
    .tensors = {SPEC_NORMS, OWN},
    .layer = part_llama_layer,
};
