/* engine/model/arch_qwen3.c - Qwen3 (Qwen team, 2025), dense and with experts: each head of q and k gets an RMS norm
 * before RoPE. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

const mr_arch mr_arch_qwen3 = {
    .name = "qwen3",
    .rope_pairs = MR_ROPE_HALVES,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_HEAD_NORMS, SPEC_GLU},
    .layer = part_llama_layer,
};

const mr_arch mr_arch_qwen3moe = {
    .name = "qwen3moe",
    .rope_pairs = MR_ROPE_HALVES,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_HEAD_NORMS, SPEC_GLU, SPEC_MOE},
    .layer = part_llama_layer,
};
