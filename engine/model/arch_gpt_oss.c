/* engine/model/arch_gpt_oss.c - gpt-oss (OpenAI, 2025): biases everywhere, sinks in attention, a sliding window in
 * every second layer, and experts with a clamped gated unit. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

static const tensor_spec OWN[] = {
    {W_ATTN_NORM, "attn_norm.weight", SIZE_D, SIZE_ONE, 0},
    {W_SINKS, "attn_sinks.weight", SIZE_HEADS, SIZE_ONE, 0},
    {W_O_BIAS, "attn_output.bias", SIZE_D, SIZE_ONE, 0},
    {W_FFN_NORM, "post_attention_norm.weight", SIZE_D, SIZE_ONE, 0},
    {W_ROUTER_BIAS, "ffn_gate_inp.bias", SIZE_EXPERTS, SIZE_ONE, 0},
    {W_GATE_EXPERTS_BIAS, "ffn_gate_exps.bias", SIZE_FF, SIZE_EXPERTS, VECTORS},
    {W_UP_EXPERTS_BIAS, "ffn_up_exps.bias", SIZE_FF, SIZE_EXPERTS, VECTORS},
    {W_DOWN_EXPERTS_BIAS, "ffn_down_exps.bias", SIZE_D, SIZE_EXPERTS, VECTORS},
    {0},
};

const mr_arch mr_arch_gpt_oss = {
    .name = "gpt-oss",
    .rope_pairs = MR_ROPE_HALVES,
    .glu = {.kind = MR_GLU_GPT_OSS, .limit = 7.0f},
    .tensors = {OWN, SPEC_GQA, SPEC_QKV_BIASES, SPEC_MOE},
    .layer = part_llama_layer,
};
