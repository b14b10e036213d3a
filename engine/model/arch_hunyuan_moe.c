/* engine/model/arch_hunyuan_moe.c - Hunyuan with experts (Tencent, 2025): Llama's layer; each head of q and k gets an
 * RMS norm behind RoPE; a shared expert. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

static const tensor_spec OWN[] = {
    {W_Q_LATE_NORM, "attn_q_norm.weight", SIZE_K_HEAD, SIZE_ONE, 0},
    {W_K_LATE_NORM, "attn_k_norm.weight", SIZE_K_HEAD, SIZE_ONE, 0},
    {0},
};

const mr_arch mr_arch_hunyuan_moe = {
    .name = "hunyuan-moe",
    .rope_pairs = MR_ROPE_HALVES,
    .tensors = {SPEC_NORMS, SPEC_GQA, OWN, SPEC_GLU, SPEC_MOE, SPEC_SHARED},
    .layer = part_llama_layer,
};
