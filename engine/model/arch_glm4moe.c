/* engine/model/arch_glm4moe.c - GLM-4.5 to 4.7 (Zhipu AI, 2025): Llama's layer with biases on q, k and v. Some models
 * norm the heads of q and k. The norm in front of the feed-forward part has the name of one behind attention. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

static const tensor_spec OWN[] = {
    {W_ATTN_NORM, "attn_norm.weight", SIZE_D, SIZE_ONE, 0},
    {W_FFN_NORM, "post_attention_norm.weight", SIZE_D, SIZE_ONE, 0},
    {W_Q_NORM, "attn_q_norm.weight", SIZE_K_HEAD, SIZE_ONE, OPTIONAL},
    {W_K_NORM, "attn_k_norm.weight", SIZE_K_HEAD, SIZE_ONE, OPTIONAL},
    {0},
};

const mr_arch mr_arch_glm4moe = {
    .name = "glm4moe",
    .rope_pairs = MR_ROPE_HALVES,
    .tensors = {OWN, SPEC_GQA, SPEC_ANY_BIASES, SPEC_GLU, SPEC_MOE, SPEC_CHOICE_BIAS, SPEC_SHARED},
    .layer = part_llama_layer,
};
