/* engine/model/arch_qwen2.c - Qwen2 and Qwen2.5 (Qwen team, 2024), dense and with experts: Llama's layer with biases on
 * q, k and v. RoPE rotates an element of a head's first half together with one of the second half. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

const mr_arch mr_arch_qwen2 = {
    .name = "qwen2",
    .rope_pairs = MR_ROPE_HALVES,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_QKV_BIASES, SPEC_GLU},
    .layer = part_llama_layer,
};

static const tensor_spec SHARED_GATE[] = {
    {W_SHARED_GATE, "ffn_gate_inp_shexp.weight", SIZE_D, SIZE_ONE, IN_SHARED | ONE_ROW},
    {0},
};

const mr_arch mr_arch_qwen2moe = {
    .name = "qwen2moe",
    .rope_pairs = MR_ROPE_HALVES,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_QKV_BIASES, SPEC_GLU, SPEC_MOE, SPEC_SHARED, SHARED_GATE},
    .layer = part_llama_layer,
};
